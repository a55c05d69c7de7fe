"""What is written to files: whole or not at all, in plain numbers, and never in the place of what is no file."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import profl
from profl.cli.outputs import check_files
from profl.storage import append_log
from profl.storage.archive import DamagedFile
from profl.storage.atomic import atomic, write_json
from profl.storage.checkpoints import KEEP, Checkpoints
from profl.storage.paths import check_file, check_folder


def test_arrays_and_their_numbers_become_plain(tmp_path):
    path = tmp_path / "found.json"
    write_json(path, {"a": np.float32(0.5), "b": jnp.arange(2), "c": [np.int64(3), True, None]})
    assert json.loads(path.read_text()) == {"a": 0.5, "b": [0, 1], "c": [3, True, None]}


def test_what_cannot_be_written_leaves_the_old_file(tmp_path):
    path = tmp_path / "found.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError, match="object is not JSON serializable"):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


# -- what is no plain file ---------------------------------------------------------------------------------------------


def test_a_pipe_is_written_into_and_stays_one(tmp_path):
    path, heard = tmp_path / "pipe", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: heard.append(path.read_text()))
    reader.start()
    check_file("--json", path)
    write_json(path, [1, 2])
    reader.join(10)
    assert json.loads(heard[0]) == [1, 2]
    assert stat.S_ISFIFO(path.stat().st_mode)
    assert list(tmp_path.iterdir()) == [path]


def test_a_device_stays_one(tmp_path):
    path = tmp_path / "null"
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        path.write_text("")
    except OSError:
        pytest.skip("needs the right to make a device")
    write_json(path, [1, 2])
    assert stat.S_ISCHR(path.stat().st_mode)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_one_and_its_target_gets_the_content(there, tmp_path):
    (tmp_path / "far").mkdir()
    target, link = tmp_path / "far" / "target.txt", tmp_path / "link.json"
    if there:
        target.write_text("old")
    link.symlink_to(target)
    check_file("--json", link)
    write_json(link, [1])
    assert link.is_symlink()
    assert json.loads(target.read_text()) == [1]
    assert not target.is_symlink()
    assert sorted(tmp_path.iterdir()) == [tmp_path / "far", link]


def test_a_file_keeps_its_mode_and_a_new_one_has_what_the_umask_leaves(tmp_path):
    path, before = tmp_path / "found.json", os.umask(0o022)
    try:
        write_json(path, 1)
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        path.chmod(0o640)
        write_json(path, 2)
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
    finally:
        os.umask(before)


def test_standard_output_in_a_file_is_added_to(tmp_path):
    with open(tmp_path / "out", "w") as out:
        out.write("first\n")
        out.flush()
        write_json(f"/dev/fd/{out.fileno()}", [1])  # what /dev/stdout is
    assert (tmp_path / "out").read_text() == "first\n[\n  1\n]\n"


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (".", "must name a file, got the folder"),
        ("file/below.json", "is a file, not a folder"),
        ("x" * 300 + ".json", "cannot be"),
        ("loop", "cannot be"),
        ("a\0b", "cannot be"),
        ("/proc/nowhere/found.json", "cannot be written to"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_any_work(place, message, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(profl.InputError, match=f"--json.*{message}"):
        check_files(json=tmp_path / place)


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_found_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(profl.InputError, match=r"--checkpoint: the folder .* cannot be written to: No space left"):
        check_folder("--checkpoint", tmp_path / "new")
    with pytest.raises(profl.InputError, match="cannot be written to: No space left"):
        Checkpoints(tmp_path / "new", {})
    assert not list(tmp_path.iterdir())


def test_two_devices_are_no_two_files(tmp_path):
    assert len(check_files(json=Path(os.devnull), log=Path(os.devnull))) == 2
    with pytest.raises(profl.InputError, match="must name different files"):
        check_files(json=tmp_path / "a", log=tmp_path / "a")


# -- checkpoints -------------------------------------------------------------------------------------------------------


class Crash(BaseException):
    """The process is gone."""


def toy(folder, rounds=6, after=lambda number: None):
    """A run whose states and lists tell every round from every other; what it ends with."""
    with Checkpoints(folder, {"run": "toy"}) as saved:
        state, lists = {"x": np.zeros(3)}, {"rounds": [], "said": []}
        found = saved.newest(state, {"rounds": {"y": 0.0}, "said": (0, "")})
        done = 0
        if found is not None:
            done, state, lists = found.round, found.state, found.lists
        for number in range(done + 1, rounds + 1):
            state = {"x": state["x"] * 1.1 + number}
            lists["rounds"].append({"y": state["x"].sum()})
            lists["said"] += [(number, f"so it is {number}")] * (number % 3)
            saved.save(number, state, lists, {"last": number})
            after(number)
    return state["x"].tolist(), [float(one["y"]) for one in lists["rounds"]], [str(what) for _, what in lists["said"]]


CALLS = ("fsync", "replace", "open", "unlink", "chmod")


@pytest.mark.parametrize("call", CALLS)
def test_a_crash_at_any_call_costs_one_round_at_most(call, tmp_path, monkeypatch):
    """The process dies before, or right after, the k-th call of this kind, for every k; then it is started again."""
    expected, real = toy(tmp_path / "whole"), getattr(os, call)
    for number in range(1, 100):
        folder, count, finished = tmp_path / str(number), [0], []

        def dying(*arguments, count=count, number=number, **named):
            count[0] += 1
            if count[0] != number:
                return real(*arguments, **named)
            if number % 2 == 0:
                with contextlib.suppress(FileNotFoundError):
                    result = real(*arguments, **named)
                    if call == "open":
                        os.close(result)
            raise Crash

        with monkeypatch.context() as patch:
            patch.setattr(os, call, dying)
            try:
                toy(folder, after=finished.append)
                break  # not so many calls
            except Crash:
                pass
        with Checkpoints(folder, {"run": "toy"}) as saved:
            assert (saved.numbers() or [0])[-1] >= (finished or [0])[-1]
        assert toy(folder) == expected
        assert not list(folder.glob(".*"))
    assert 6 < number < 99


def test_what_was_cut_off_while_it_was_appended_is_cut_away(tmp_path):
    expected = toy(tmp_path / "whole")
    size = (tmp_path / "whole" / "history-00000000").stat().st_size
    for cut in (1, 7, 8, 39, 40, 41, 100):
        folder = tmp_path / str(cut)
        toy(folder, rounds=4)
        with open(folder / "history-00000000", "ab") as file:
            file.write(os.urandom(cut))
        assert toy(folder) == expected
        assert (folder / "history-00000000").stat().st_size == size


def test_history_is_appended_and_not_rewritten(tmp_path):
    sizes = []

    def look(number):
        sizes.append(
            ((tmp_path / "history-00000000").stat().st_size, (tmp_path / f"round-{number:08d}.npz").stat().st_size)
        )

    toy(tmp_path, 60, look)
    grown = np.diff([size for size, _ in sizes])
    assert grown.min() > 0
    assert grown.max() < 1000
    assert sizes[-1][1] - sizes[KEEP][1] < 40  # the number of the round, and how long the history is, have more digits


def test_going_back_cuts_the_history(tmp_path):
    expected = toy(tmp_path)
    for number in (5, 6):
        (tmp_path / f"round-{number:08d}.npz").unlink()
    assert toy(tmp_path) == expected


def test_a_damaged_history_names_its_place(tmp_path):
    toy(tmp_path)
    path = tmp_path / "history-00000000"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(profl.InputError, match=r"history-00000000 is damaged after \d+ bytes, in record \d+"):
        toy(tmp_path)
    path.write_bytes(content[:20])
    with pytest.raises(profl.InputError, match="history-00000000 is cut short: 20 of"):
        toy(tmp_path)


def test_arrays_of_every_kind_come_back(tmp_path):
    arrays = [
        np.array(""),
        np.array("é\u2028"),
        np.zeros((0, 3)),
        np.array(True),
        jnp.ones(2, jnp.bfloat16),
        np.int8(3),
    ]
    named = {str(i): np.asarray(array) for i, array in enumerate(arrays)}
    marked = append_log.append(tmp_path, "run", append_log.START, {}, [("a", named)], 1)
    [back] = append_log.Log(tmp_path).lists(marked, {"a": 1})["a"]
    for key, array in named.items():
        np.testing.assert_array_equal(back[key], array)
        assert back[key].dtype == array.dtype
    with pytest.raises(DamagedFile):
        append_log.Log(tmp_path).lists(marked._replace(sha256="0" * 64), {"a": 1})


def test_checkpoints_are_private(tmp_path):
    toy(tmp_path / "kept")
    assert stat.S_IMODE((tmp_path / "kept").stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "kept").iterdir()} == {0o600}
    with atomic(tmp_path / "open", private=True) as temporary:
        temporary.write_text("x")
    assert stat.S_IMODE((tmp_path / "open").stat().st_mode) == 0o600


def test_two_runs_in_one_folder_the_second_is_refused_by_name(tmp_path):
    with Checkpoints(tmp_path, {}), pytest.raises(profl.InputError, match=f"process {os.getpid()}, this one"):
        Checkpoints(tmp_path, {})
    code = (  # what another process does, without the seconds that importing profl takes
        "import fcntl, sys, time; file = open(sys.argv[1], 'r+'); fcntl.lockf(file, fcntl.LOCK_EX); "
        "print('held', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(profl.InputError, match=rf"another run works in .*\(process {os.getpid()} on .*\): wait"):
            Checkpoints(tmp_path, {})
        other.kill()
        other.wait()
        Checkpoints(tmp_path, {}).close()  # it died: the folder is free


def test_a_refused_folder_is_let_go(tmp_path):
    toy(tmp_path)
    for _ in range(2):
        with pytest.raises(profl.InputError, match="holds checkpoints up to round 6"):
            Checkpoints(tmp_path, {}, resume=False)


def test_a_full_disk_under_way_says_what_is_kept(tmp_path, monkeypatch):
    with pytest.raises(OSError, match=r"round 3 could not be kept, .* can be gone on from: No space left") as found:
        toy(tmp_path, after=lambda number: number == 2 and monkeypatch.setattr(os, "fsync", full))
    assert found.value.errno == errno.ENOSPC
    monkeypatch.undo()
    toy(tmp_path)


# -- what happens to a folder between two starts -----------------------------------------------------------------------


def flip(path, place=0.5):
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 1
    path.write_bytes(content)


def refused(folder):
    with pytest.raises(profl.InputError) as found:
        toy(folder, 8)
    assert "\n" not in str(found.value)
    return str(found.value)


def test_a_flipped_byte_of_the_history_costs_the_figures_around_it_alone(tmp_path, monkeypatch):
    """The damaged file is named, not a checkpoint; given up, the run goes on from where it was."""
    monkeypatch.setattr(append_log, "SEGMENT", 600, raising=False)
    state, figures, said = toy(tmp_path / "whole", 8)
    folder = tmp_path / "damaged"
    toy(folder)
    segments = sorted(folder.glob("history*"))
    flip(segments[1])
    assert f"{segments[1].name} is damaged after" in refused(folder)
    assert "round-" not in refused(folder)  # to remove checkpoints would end at the first round
    segments[1].rename(f"{segments[1]}.damaged")
    with Checkpoints(folder, {"run": "toy"}) as saved:
        found = saved.newest({"x": np.zeros(3)}, {"rounds": {"y": 0.0}, "said": (0, "")})
        assert found.round == 6
        known = [one and float(one["y"]) for one in found.lists["rounds"]]
        assert 0 < known.count(None) < 6
        assert all(one in (None, figure) for one, figure in zip(known, figures, strict=False))
        assert 0 < [one and str(one[1]) for one in found.lists["said"]].count(None) < 6
        assert "are unknown" in saved.notes[0]
        unknown = {"rounds": {"y": np.nan}, "said": (0, "")}
        lists = {name: [one or unknown[name] for one in items] for name, items in found.lists.items()}
        x = found.state["x"]
        for number in (7, 8):
            x = x * 1.1 + number
            lists["rounds"].append({"y": x.sum()})
            lists["said"] += [(number, f"so it is {number}")] * (number % 3)
            saved.save(number, {"x": x}, lists)
        assert x.tolist() == state
    with Checkpoints(folder, {"run": "toy"}) as saved:
        found = saved.newest({"x": np.zeros(3)}, {"rounds": {"y": 0.0}, "said": (0, "")})
        assert [float(one["y"]) for one in found.lists["rounds"][-2:]] == figures[-2:]
        assert [str(what) for _, what in found.lists["said"][-3:]] == said[-3:]


@pytest.mark.parametrize("stray", ["renamed", "of another run", "empty"])
def test_a_stray_checkpoint_does_not_decide_where_a_run_goes_on(stray, tmp_path):
    expected, folder = toy(tmp_path / "whole", 8), tmp_path / "kept"
    toy(folder)
    place = folder / "round-00000099.npz"
    if stray == "renamed":
        place.write_bytes((folder / "round-00000004.npz").read_bytes())
    elif stray == "of another run":
        toy(tmp_path / "other", 99)
        place.write_bytes((tmp_path / "other" / place.name).read_bytes())
    else:
        place.write_bytes(b"")
    content, made = place.read_bytes(), []
    assert toy(folder, 8, made.append) == expected
    assert made == [7, 8]
    assert toy(folder, 8, made.append) == expected  # and again: what was saved is still there
    assert made == [7, 8]
    assert place.read_bytes() == content
    with Checkpoints(folder, {"run": "toy"}) as saved:
        saved.newest({"x": np.zeros(3)}, {"rounds": {"y": 0.0}, "said": (0, "")})
        assert "round-00000099.npz in the checkpoint folder is none that this run wrote" in saved.notes[0]


def test_a_checkpoint_of_a_copy_that_went_on_is_refused_by_its_name(tmp_path):
    toy(tmp_path / "kept")
    (tmp_path / "copy").mkdir()
    for file in (tmp_path / "kept").iterdir():
        (tmp_path / "copy" / file.name).write_bytes(file.read_bytes())
    toy(tmp_path / "copy", 9)
    stray = tmp_path / "kept" / "round-00000009.npz"
    stray.write_bytes((tmp_path / "copy" / stray.name).read_bytes())
    said = refused(tmp_path / "kept")
    assert "round-00000009.npz: it follows more of the history than is there, which ends with round 6" in said
    stray.unlink()
    assert toy(tmp_path / "kept", 9) == toy(tmp_path / "copy", 9)


@pytest.mark.parametrize("name", ["lock", "history", "round-00000007.npz"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_what_is_no_plain_file_is_refused_and_not_waited_for(name, kind, tmp_path):
    toy(tmp_path)
    path = max(tmp_path.glob("history*")) if name == "history" else tmp_path / name
    path.unlink(missing_ok=True)
    if kind == "device":
        try:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        except OSError:
            pytest.skip("needs the right to make a device")
    else:
        (os.mkfifo if kind == "pipe" else os.mkdir)(path)
    said = []
    worker = threading.Thread(target=lambda: said.append(refused(tmp_path)), daemon=True)
    worker.start()
    worker.join(10)
    assert said
    assert re.search(rf"{path.name} must be a plain file, it is a {kind}: remove it", said[0])


LOCKING = (  # what another process does, without the seconds that importing profl takes
    "import fcntl, sys\n"
    "try: fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
    "except OSError: print('held')"
)


def others_hear(folder):
    command = [sys.executable, "-c", LOCKING, str(folder / "lock")]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def test_the_lock_outlives_a_copy_of_the_folder_by_the_same_process(tmp_path):
    with Checkpoints(tmp_path / "kept", {}):
        assert others_hear(tmp_path / "kept") == "held\n"
        shutil.copytree(tmp_path / "kept", tmp_path / "copy")
        assert others_hear(tmp_path / "kept") == "held\n"
    assert others_hear(tmp_path / "kept") == ""


def test_a_child_that_was_forked_does_not_hold_the_folder(tmp_path):
    """It outlives its parent, which is killed; and its end, where it ends first, frees nothing."""
    code = (
        "import os, sys, time; from pathlib import Path; from profl.storage.lock import Lock\n"
        "held = Lock(Path(sys.argv[1]))\n"
        "if os.fork() == 0: os._exit(0)\n"
        "os.wait()\n"
        "if os.fork() == 0: os.close(1); time.sleep(60); os._exit(0)\n"
        "print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        assert parent.stdout.readline() == "held\n"
        assert others_hear(tmp_path) == "held\n"
        parent.kill()
        parent.wait()
        assert others_hear(tmp_path) == ""
        os.killpg(parent.pid, signal.SIGKILL)
