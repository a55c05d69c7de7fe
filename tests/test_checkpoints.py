"""Checkpoints: a resumed run has the same bits, no deployment is made twice, and what does not fit is refused.

``simulate`` keeps files of rounds, ``train`` a database of what happened.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import profl
from profl.storage import append_log
from profl.storage.checkpoints import KEEP, Checkpoints
from profl.storage.hashes import digest, sha256
from tests import killed

ROOT = Path(__file__).parent.parent


ENGINES = pytest.mark.parametrize("engine", ["quick", "loop"])
LIVE = ("loop", "shared", "sites", "shops")
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("simulate", "shared", "adaptive")]


@pytest.mark.parametrize("engine", ["loop", *SLOW])  # test_methods: a simulation in parts
def test_a_run_in_parts_has_the_same_bits(engine, tmp_path):
    whole = killed.run(engine, tmp_path / "whole")
    for rounds in (1, 5, 12):
        parts = killed.run(engine, tmp_path / "parts", rounds=rounds)
    for name in ("theta", "samples", "deployments", "kept"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))
    assert parts.rounds.tolist() == list(range(13))
    files = sorted(file.name for file in (tmp_path / "parts").iterdir())
    without = killed.run(engine)
    if engine in LIVE:
        assert files == ["campaign.db", "lock"]
        np.testing.assert_array_equal(without.theta, whole.theta)
    else:  # one round at a time is another program: equal, not to the last bit
        assert files == ["history-00000000", "lock", *(f"round-{number:08d}.npz" for number in range(13 - KEEP, 13))]
        np.testing.assert_allclose(without.theta, whole.theta, atol=1e-5)
    again = killed.run(engine, tmp_path / "whole")  # complete already
    np.testing.assert_array_equal(again.theta, whole.theta)


@pytest.mark.slow
def test_records_do_not_decide_what_a_crash_costs(tmp_path):
    """A simulation that records every fifth round still saves every round, and records the same."""
    plain = killed.run("simulate", record_every=5)
    killed.run("simulate", tmp_path, record_every=5, rounds=7)
    assert (tmp_path / "round-00000007.npz").exists()
    saved = killed.run("simulate", tmp_path, record_every=5)
    assert saved.rounds.tolist() == plain.rounds.tolist() == [0, 5, 10, 12]
    np.testing.assert_allclose(saved.theta, plain.theta, atol=1e-5)
    np.testing.assert_array_equal(saved.samples, plain.samples)
    np.testing.assert_allclose(saved.kept, plain.kept)


def start(engine, folder, out, rounds):
    """The run in a process of its own; what one process compiled, the next one finds."""
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(out.parent / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    command = [sys.executable, "-m", "tests.killed", engine, str(folder), str(out), str(rounds)]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, env={**os.environ, **cache})


@pytest.mark.parametrize(
    ("engine", "kills"),
    [
        ("loop", 1),
        pytest.param("shared", 20, marks=pytest.mark.slow),
        pytest.param("simulate", 20, marks=pytest.mark.slow),
    ],
)
def test_kill_9_at_any_moment(engine, kills, tmp_path):
    """A process that is killed again and again, each time after at least one more round, ends with the same bits."""
    rounds = 12 if kills == 1 else 2000 if engine == "simulate" else 100  # enough to be killed in the middle every time
    expected = killed.run(engine, tmp_path / "whole", rounds=rounds).theta
    folder, out, rng = tmp_path / "killed", tmp_path / "theta.npy", np.random.default_rng(0)
    for _ in range(kills):
        process = start(engine, folder, out, rounds)
        before = newest(folder)
        deadline = time.monotonic() + 120
        while newest(folder) <= before and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.2))
        done = newest(folder)
        assert process.poll() is None  # still under way
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert newest(folder) >= done  # nothing that was finished is lost
    process = start(engine, folder, out, rounds)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors.decode()
    np.testing.assert_array_equal(np.load(out), expected)
    assert not list(folder.glob(".*"))  # what a killed process left half written is gone


def newest(folder):
    """The last round that is on disk."""
    if (folder / "campaign.db").exists():
        return len(closed(folder))
    names = [name for name in os.listdir(folder) if name.startswith("round-")] if folder.exists() else []
    return max((int(name[6:14]) for name in names), default=0)


def closed(folder):
    """The rounds that a log has closed."""
    try:
        with closing(sqlite3.connect(f"file:{folder}/campaign.db?mode=ro", uri=True, timeout=30)) as database:
            return database.execute("select seq from profl_events where kind = 'closed'").fetchall()
    except sqlite3.OperationalError:  # it has no tables yet
        return []


@pytest.mark.parametrize(
    ("engine", "kills"), [("sites", 2), *[pytest.param(engine, 10, marks=pytest.mark.slow) for engine in LIVE[2:]]]
)
def test_what_is_open_at_a_kill_is_all_that_may_be_deployed_again(engine, kills, tmp_path):
    """R = 5: a deployment is never another model's, and a client that keeps its data never deploys twice."""
    folder, out, rng = tmp_path / "killed", tmp_path / "theta.npy", np.random.default_rng(1)
    for _ in range(kills):
        process = start(engine, folder, out, 1000)
        before, deadline = newest(folder), time.monotonic() + 120
        while newest(folder) <= before and time.monotonic() < deadline:
            assert process.poll() is None, process.communicate()[1].decode()
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.2))
        process.send_signal(signal.SIGKILL)
        process.wait()
    rounds = newest(folder) + 1
    process = start(engine, folder, out, rounds)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors.decode()
    made = killed.deployments(tmp_path)
    models = {(one["client"], one["step"], one["id"], one["theta"]) for one in made}
    asked = rounds * 5 * killed.CASE.count
    assert (
        len(models) == len({one["id"] for one in made}) == len({(one["client"], one["step"]) for one in made}) == asked
    )
    assert len(made) - asked <= (0 if engine == "sites" else kills * killed.CASE.count)  # who had one open, each time


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of a run of two rounds, by engine."""
    folders = {engine: tmp_path_factory.mktemp(engine) for engine in ("quick", "loop")}
    for engine, folder in folders.items():
        killed.run(engine, folder, rounds=2)
    return folders


def copy(made, tmp_path, engine="quick"):
    for file in made[engine].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path / "round-00000002.npz"


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_cut_short(share, made, tmp_path):
    newest = copy(made, tmp_path)
    newest.write_bytes(newest.read_bytes()[: int(share * newest.stat().st_size)])
    with pytest.raises(profl.InputError, match=r"round-00000002.npz: it is cut short.*remove the file"):
        killed.run("quick", tmp_path)
    newest.unlink()
    assert killed.run("quick", tmp_path, rounds=2).rounds[-1] == 2  # from the one before


def damage(folder):
    """Flip a bit in the first file of the history; the file, and its name once it is given up."""
    segment = min(folder.glob("history*"))
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)
    return segment, segment.with_name(f"{segment.name}.damaged")


UNKNOWN = "are unknown, and totals do not count what they held"


def test_a_damaged_history_costs_figures_and_no_rounds(tmp_path, monkeypatch):
    monkeypatch.setattr(append_log, "SEGMENT", 1000, raising=False)
    whole, folder = killed.run("quick", tmp_path / "whole", rounds=4), tmp_path / "damaged"
    killed.run("quick", folder, rounds=3)
    segment, damaged = damage(folder)
    with pytest.raises(profl.InputError, match=rf"{segment.name} is damaged after .*{damaged.name}"):
        killed.run("quick", folder, rounds=4)
    segment.rename(damaged)
    run = killed.run("quick", folder, rounds=4)
    np.testing.assert_array_equal(run.theta[:, -1], whole.theta[:, -1])
    lost = np.isnan(run.theta[0]).any(axis=-1)
    assert 0 < lost.sum() < 4
    assert not lost[-1]
    np.testing.assert_array_equal(run.theta[:, ~lost], whole.theta[:, ~lost])
    assert UNKNOWN in " ".join(run.summary().split())


@pytest.mark.skipif(find_spec("flwr") is None, reason="needs Flower")
def test_a_damaged_history_of_a_flower_server(tmp_path, monkeypatch):
    from profl.run.flower import Federation, InProcessGrid, ProFLStrategy, make_client_app
    from tests.faults import flower

    def run(folder, rounds):
        own = Federation(flower.CASE, flower.METHOD, flower.CASE.count, **{**flower.SETTINGS, "rounds": rounds})
        grid = InProcessGrid(make_client_app(own, folder=tmp_path / "nodes" / folder), own.clients)
        return ProFLStrategy(own, wait=1.0, checkpoint=tmp_path / folder).run(grid)

    monkeypatch.setattr(append_log, "SEGMENT", 1000, raising=False)
    whole = run("whole", 4)
    run("damaged", 3)
    segment, damaged = damage(tmp_path / "damaged")
    with pytest.raises(profl.InputError, match=rf"{segment.name} is damaged after .*{damaged.name}"):
        run("damaged", 4)
    segment.rename(damaged)
    again = run("damaged", 4)
    np.testing.assert_array_equal(again.theta[:, -1], whole.theta[:, -1])
    assert again.theta.shape == whole.theta.shape
    assert UNKNOWN in " ".join(again.summary().split())


def altered(path, change):
    with np.load(path) as archive:
        arrays = dict(archive)
    meta = json.loads(str(arrays["meta"]))
    change(meta, arrays)
    np.savez(path, **{**arrays, "meta": np.array(json.dumps(meta))})


def test_another_version(made, tmp_path):
    altered(copy(made, tmp_path), lambda meta, arrays: meta.update(format=99))
    with pytest.raises(profl.InputError, match="it has format 99, not 7"):
        killed.run("quick", tmp_path)


def test_altered(made, tmp_path):
    name = "state.theta"
    altered(copy(made, tmp_path), lambda meta, arrays: arrays.update({name: arrays[name] + 1}))
    with pytest.raises(profl.InputError, match="sha256"):
        killed.run("quick", tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"local_steps": 3}, "local_steps was 2, is 3"),
        ({"participation": 1.0}, "participation was 3 uniform, is 4 uniform"),
        ({"rounds": 1}, "holds round 2, asked for 1 rounds"),
        ({"resume": False}, "holds (checkpoints|a run) up to round 2: pass resume=True"),
    ],
)
@ENGINES
def test_another_run(engine, settings, message, made, tmp_path):
    copy(made, tmp_path, engine)
    with pytest.raises(profl.InputError, match=message):
        killed.run(engine, tmp_path, **settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"seed": 5}, "seeds was"),
        ({"initial": np.ones(2)}, "start was"),
        ({"privacy": profl.parts.Privacy(1.0)}, "privacy was nothing, is Privacy"),
    ],
)
def test_another_live_run(settings, words, made, tmp_path):
    copy(made, tmp_path, "loop")
    with pytest.raises(profl.InputError, match=f"of another run: {words}"):
        killed.run("loop", tmp_path, **settings)


@ENGINES
def test_another_problem_and_another_method(engine, made, tmp_path, monkeypatch):
    copy(made, tmp_path, engine)
    with monkeypatch.context() as patch:
        patch.setattr(killed, "CASE", replace(killed.CASE, loss=lambda theta, z: -2 * (theta * z).sum()))
        with pytest.raises(profl.InputError, match=r"another run: loss was .*revenue.*, is .*lambda"):
            killed.run(engine, tmp_path)
    monkeypatch.setitem(killed.METHODS, engine, profl.pofl(0.02, jacobian="least_squares"))
    with pytest.raises(profl.InputError, match=r"method Optimiser.*learning_rate was 0.01, is 0.02"):
        killed.run(engine, tmp_path)


@ENGINES
def test_a_changed_global_and_what_cannot_be_told(engine, made, tmp_path, monkeypatch):
    copy(made, tmp_path, engine)
    with monkeypatch.context() as patch:
        patch.setattr(killed, "DEMAND", 7.0)
        with pytest.raises(profl.InputError, match=r"reaction: .*global DEMAND was 6.0, is 7.0"):
            killed.run(engine, tmp_path)
    rng = np.random.default_rng(0)
    odd = replace(killed.CASE, loss=lambda theta, z: killed.revenue(theta, z) if rng is None else -(theta * z).sum())
    monkeypatch.setattr(killed, "CASE", odd)
    with pytest.raises(profl.InputError, match=r"loss: caught rng is a .*Generator.*pass version='1'"):
        killed.run(engine, tmp_path)
    monkeypatch.setattr(killed, "CASE", replace(odd, version="1"))
    with pytest.raises(profl.InputError, match=r"another run: .*version was None, is 1"):
        killed.run(engine, tmp_path)


@ENGINES
def test_two_runs_in_one_folder(engine, made, tmp_path):
    copy(made, tmp_path, engine)
    with Checkpoints(tmp_path, {}), pytest.raises(profl.InputError, match=r"another run works in .*\(process \d+"):
        killed.run(engine, tmp_path, rounds=2)
    assert killed.run(engine, tmp_path, rounds=2).rounds[-1] == 2


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(profl.InputError, match="must be a folder"):
        Checkpoints(tmp_path / "file", {})
    with pytest.raises(profl.InputError, match="must be a folder"):
        killed.run("loop", tmp_path / "file")


def test_a_live_run_is_not_begun_among_files_of_rounds(made, tmp_path):
    """Those of a simulation, or of a version whose live runs had them."""
    copy(made, tmp_path)
    with pytest.raises(profl.InputError, match=r"holds round-00000002\.npz, a checkpoint of simulate or of an earlier"):
        killed.run("loop", tmp_path)
    assert not (tmp_path / "campaign.db").exists()


def test_a_stray_checkpoint_does_not_keep_a_live_run_from_going_on(made, tmp_path):
    copy(made, tmp_path, "loop")
    (tmp_path / "round-00000099.npz").write_bytes((made["quick"] / "round-00000002.npz").read_bytes())
    assert killed.run("loop", tmp_path, rounds=2).rounds[-1] == 2


@pytest.mark.parametrize("kind", ["pipe", "folder"])
@pytest.mark.parametrize("name", ["campaign.db", "campaign.db-wal", "lock"])
def test_a_live_run_does_not_wait_for_what_is_no_plain_file(name, kind, tmp_path):
    (os.mkfifo if kind == "pipe" else os.mkdir)(tmp_path / name)
    with pytest.raises(profl.InputError, match=f"{name} must be a plain file, it is a {kind}: remove it"):
        killed.run("loop", tmp_path)


def test_a_damaged_log_is_refused(made, tmp_path):
    copy(made, tmp_path, "loop")
    with closing(sqlite3.connect(tmp_path / "campaign.db")) as database, database:
        database.execute("update profl_events set body = '{}' where seq = 4")
    with pytest.raises(profl.InputError, match=r"event 4 \(asked\) was changed or damaged"):
        killed.run("loop", tmp_path)
    (tmp_path / "campaign.db").write_bytes(bytes(5000))
    with pytest.raises(OSError, match="file is not a database"):
        killed.run("loop", tmp_path)


def test_a_campaign_is_what_a_live_run_leaves(made, tmp_path):
    """Its log can be opened by that name, and gone on with by hand."""
    copy(made, tmp_path, "loop")
    url = f"sqlite:///{tmp_path}/campaign.db"
    with profl.Campaign(url, killed.CASE, killed.METHODS["loop"], name="train") as campaign:
        assert campaign.status().round == 3
        np.testing.assert_array_equal(campaign.run().theta, killed.run("loop", made["loop"], rounds=2).theta)


def test_without_the_extra_a_checkpoint_is_refused_in_words(tmp_path, monkeypatch):
    for module in ("sql", "database"):
        monkeypatch.delitem(sys.modules, f"profl.campaign.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(ImportError, match=r"pip install 'profl\[campaign\]'"):
        killed.run("loop", tmp_path / "new")
    assert not list(tmp_path.iterdir())


def test_the_hash_of_arrays_stays_what_it_was():
    """Files that earlier versions wrote hold these: with another hash they could not be read."""
    arrays = {"state['theta']": np.arange(3, dtype=np.float32), "history[0]": np.ones((2, 1), np.int32)}
    whole = "b6c4de55f1df7f4f315a4550b3ca5fe08c59053436ccbd1b25a0242754ad69c2"
    assert sha256(sorted(arrays.items())) == whole
    assert digest({"gamma": np.arange(2.0)}) == "834ef431a2d7c909"
