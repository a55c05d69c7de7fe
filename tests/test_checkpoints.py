"""Checkpoints: a resumed run has the same bits, a kill costs one round at most, and what does not fit is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import profl
from profl.storage.checkpoints import KEEP, Checkpoints
from profl.storage.hashes import digest, sha256
from tests import killed

ROOT = Path(__file__).parent.parent


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
    assert files == ["history", "lock", *(f"round-{number:08d}.npz" for number in range(13 - KEEP, 13))]
    without = killed.run(engine)  # one round at a time is another program: equal, not to the last bit
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
    names = [name for name in os.listdir(folder) if name.startswith("round-")] if folder.exists() else []
    return max((int(name[6:14]) for name in names), default=0)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    killed.run("loop", folder, rounds=2)
    return folder


def copy(made, tmp_path):
    for file in made.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path / "round-00000002.npz"


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_cut_short(share, made, tmp_path):
    newest = copy(made, tmp_path)
    newest.write_bytes(newest.read_bytes()[: int(share * newest.stat().st_size)])
    with pytest.raises(profl.InputError, match=r"round-00000002.npz: it is cut short.*remove the file"):
        killed.run("loop", tmp_path)
    newest.unlink()
    assert killed.run("loop", tmp_path, rounds=2).rounds[-1] == 2  # from the one before


def altered(path, change):
    with np.load(path) as archive:
        arrays = dict(archive)
    meta = json.loads(str(arrays["meta"]))
    change(meta, arrays)
    np.savez(path, **{**arrays, "meta": np.array(json.dumps(meta))})


def test_another_version(made, tmp_path):
    altered(copy(made, tmp_path), lambda meta, arrays: meta.update(format=99))
    with pytest.raises(profl.InputError, match="it has format 99, not 6"):
        killed.run("loop", tmp_path)


def test_altered(made, tmp_path):
    name = "state['carry'].theta"
    altered(copy(made, tmp_path), lambda meta, arrays: arrays.update({name: arrays[name] + 1}))
    with pytest.raises(profl.InputError, match="sha256"):
        killed.run("loop", tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": 5}, "seeds was"),
        ({"local_steps": 3}, "local_steps was 2, is 3"),
        ({"participation": 1.0}, "participation was 3 uniform, is 4 uniform"),
        ({"rounds": 1}, "holds round 2, asked for 1 rounds"),
        ({"resume": False}, "holds checkpoints up to round 2: pass resume=True"),
    ],
)
def test_another_run(settings, message, made, tmp_path):
    copy(made, tmp_path)
    with pytest.raises(profl.InputError, match=message):
        killed.run("loop", tmp_path, **settings)


def test_another_problem_and_another_method(made, tmp_path, monkeypatch):
    copy(made, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(killed, "CASE", replace(killed.CASE, loss=lambda theta, z: -2 * (theta * z).sum()))
        with pytest.raises(profl.InputError, match=r"another run: loss was .*revenue.*, is .*lambda"):
            killed.run("loop", tmp_path)
    monkeypatch.setitem(killed.METHODS, "loop", profl.pofl(0.02, jacobian="least_squares"))
    with pytest.raises(profl.InputError, match=r"method Optimiser.*learning_rate was 0.01, is 0.02"):
        killed.run("loop", tmp_path)


def test_a_changed_global_and_what_cannot_be_told(made, tmp_path, monkeypatch):
    copy(made, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(killed, "DEMAND", 7.0)
        with pytest.raises(profl.InputError, match=r"reaction: .*global DEMAND was 6.0, is 7.0"):
            killed.run("loop", tmp_path)
    rng = np.random.default_rng(0)
    odd = replace(killed.CASE, loss=lambda theta, z: killed.revenue(theta, z) if rng is None else -(theta * z).sum())
    monkeypatch.setattr(killed, "CASE", odd)
    with pytest.raises(profl.InputError, match=r"loss: caught rng is a .*Generator.*pass version='1'"):
        killed.run("loop", tmp_path)
    monkeypatch.setattr(killed, "CASE", replace(odd, version="1"))
    with pytest.raises(profl.InputError, match=r"another run: .*version was None, is 1"):
        killed.run("loop", tmp_path)


def test_two_runs_in_one_folder(made, tmp_path):
    copy(made, tmp_path)
    with Checkpoints(tmp_path, {}), pytest.raises(profl.InputError, match=r"another run works in .*\(process \d+"):
        killed.run("loop", tmp_path, rounds=2)
    assert killed.run("loop", tmp_path, rounds=2).rounds[-1] == 2


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(profl.InputError, match="must be a folder"):
        Checkpoints(tmp_path / "file", {})


def test_the_hash_of_arrays_stays_what_it_was():
    """Files that earlier versions wrote hold these: with another hash they could not be read."""
    arrays = {"state['theta']": np.arange(3, dtype=np.float32), "history[0]": np.ones((2, 1), np.int32)}
    whole = "b6c4de55f1df7f4f315a4550b3ca5fe08c59053436ccbd1b25a0242754ad69c2"
    assert sha256(sorted(arrays.items())) == whole
    assert digest({"gamma": np.arange(2.0)}) == "834ef431a2d7c909"
