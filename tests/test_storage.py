"""What is written to files: whole or not at all, in plain numbers, and never in the place of what is no file."""

from __future__ import annotations

import contextlib
import errno
import json
import os
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
    size = (tmp_path / "whole" / "history").stat().st_size
    for cut in (1, 7, 8, 39, 40, 41, 100):
        folder = tmp_path / str(cut)
        toy(folder, rounds=4)
        with open(folder / "history", "ab") as file:
            file.write(os.urandom(cut))
        assert toy(folder) == expected
        assert (folder / "history").stat().st_size == size


def test_history_is_appended_and_not_rewritten(tmp_path):
    sizes = []

    def look(number):
        sizes.append(((tmp_path / "history").stat().st_size, (tmp_path / f"round-{number:08d}.npz").stat().st_size))

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
    path = tmp_path / "history"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(profl.InputError, match=r"history is damaged after \d+ bytes, in record \d+"):
        toy(tmp_path)
    path.write_bytes(content[:20])
    with pytest.raises(profl.InputError, match="history is cut short: 20 of"):
        toy(tmp_path)
    path.unlink()
    with pytest.raises(profl.InputError, match="history cannot be read: No such file"):
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
    marked = append_log.append(tmp_path / "history", append_log.START, [("a", named)])
    [(name, back)] = append_log.read(tmp_path / "history", marked)
    assert name == "a"
    for key, array in named.items():
        np.testing.assert_array_equal(back[key], array)
        assert back[key].dtype == array.dtype
    with pytest.raises(DamagedFile):
        append_log.read(tmp_path / "history", marked._replace(sha256="0" * 64))


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
