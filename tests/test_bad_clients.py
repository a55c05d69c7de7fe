"""One client harms itself alone: whatever its code does, the others' run is the one they would have had without it."""

from __future__ import annotations

import asyncio
import functools
import threading
import time

import jax.numpy as jnp
import numpy as np
import pytest

import profl
from profl.run.live import batches
from tests.test_loop import SHOP, Shop

LIMIT = 0.3
RUN = {"rounds": 2, "local_steps": 2, "samples": 20, "timeout": LIMIT, "progress": False}
HANGS = threading.Event()  # never set


class Hangs:
    """Blocks whoever reads it."""

    def __array__(self, *given, **named):
        HANGS.wait(60)


class LazyColumns:
    columns = ("a", "b")

    def to_numpy(self):
        HANGS.wait(60)


class HangsInWords(Exception):
    def __str__(self):
        HANGS.wait(60)
        return ""


class NoWords(Exception):
    def __str__(self):
        raise SystemExit


class Raises:
    def __init__(self, error):
        self.error = error

    def __len__(self):
        raise self.error


class HangingProperty:
    @property
    def deploy(self):
        HANGS.wait(60)


class Blocking:
    """Blocks its event loop, and so cannot even be cancelled."""

    async def deploy(self, theta, samples):
        HANGS.wait(60)


class EndsItsLoop:
    async def deploy(self, theta, samples):
        raise SystemExit(3)


class Answers:
    """A client that answers whatever ``make(theta, samples)`` returns or raises."""

    def __init__(self, make):
        self.make = make

    def deploy(self, theta, samples):
        return self.make(theta, samples)


def raising(error):
    def make(theta, samples):
        raise error

    return Answers(make)


def answering(answer):
    return Answers(lambda theta, samples: answer)


CLIENTS = {
    "hangs in __array__": (answering(Hangs()), "took longer than 0.3 s"),
    "hangs in to_numpy": (answering(LazyColumns()), "took longer than 0.3 s"),
    "hangs in str of its error": (raising(HangsInWords()), "took longer than 0.3 s"),
    "hangs when deploy is looked up": (HangingProperty(), "took longer than 0.3 s"),
    "blocks its event loop": (Blocking(), "took longer than 0.3 s"),
    "ends its event loop": (EndsItsLoop(), "raised SystemExit: 3"),
    "interrupts": (raising(KeyboardInterrupt("no")), "raised KeyboardInterrupt: no"),
    "exits": (raising(SystemExit(1)), "raised SystemExit: 1"),
    "closes": (raising(GeneratorExit("now")), "raised GeneratorExit: now"),
    "cannot be told": (raising(NoWords()), "raised an error that cannot be shown"),
    "control codes": (raising(ValueError("\x1b[2J\nround 9\x07")), "raised ValueError: [2J round 9"),
    "no length": (answering(Raises(RuntimeError("lost"))), "raised RuntimeError: lost"),
    "no deploy": (type("Odd", (), {"deploy": property(lambda self: 3)})(), "has no method deploy"),
    "a billion rows": (answering(np.broadcast_to(np.float32(1), (10**9, 2))), "1000000000 rows are too many: 20 were"),
    "too large": (answering(np.full((20, 2), 3e38)), "3e+38, in 20 of 20 rows above 1.8e+16"),
    "too large once cast": (answering(np.full((20, 2), 1e200)), "1e+200, in 20 of 20 rows"),
    "all missing": (answering(np.ma.masked_all((20, 2))), "sent nothing: all 20 rows have missing values"),
    "text": (answering([["1", "2"]] * 20), "convert text with astype(float)"),
    "another model": (
        answering(profl.worlds.Delayed(np.ones((20, 2)), np.ones(3))),
        "model of a Delayed batch must have the",
    ),
    "no model": (answering(profl.worlds.Delayed(np.ones((20, 2)), np.full(2, np.nan))), "must be finite, got NaN"),
}


@functools.cache
def alone():
    return profl.train(SHOP, profl.pfl(), [Shop(0)], **{**RUN, "timeout": 60.0})


@pytest.mark.parametrize("name", CLIENTS)
def test_only_the_client_itself_is_left_out(name):
    bad, what = CLIENTS[name]
    good = alone()  # compiles
    started = time.monotonic()
    run = profl.train(SHOP, profl.pfl(), [Shop(0), bad], **RUN)
    assert time.monotonic() - started < 30  # half of what the hanging ones would take
    np.testing.assert_allclose(run.theta, good.theta, atol=1e-6)
    assert what in run.incidents[0][2]
    assert {client for _, client, _ in run.incidents} == {1}
    if "longer" in what:
        assert run.incidents[1][2] == "is still busy with an earlier round"


def test_a_blocked_event_loop_is_its_own_clients():
    class Waits(Shop):
        async def deploy(self, theta, samples):
            await asyncio.sleep(0.001)
            return self.demand(theta, samples)

    run = profl.train(SHOP, profl.pfl(), [Waits(0), Blocking()], **RUN)
    np.testing.assert_allclose(run.theta, alone().theta, atol=1e-6)
    assert {client for _, client, _ in run.incidents} == {1}


def test_a_loop_lasts_as_long_as_its_client():
    """What a client keeps open belongs to a loop: it is the same one in every round, whatever its tasks do to it."""
    seen = []

    class Keeps(Shop):
        async def deploy(self, theta, samples):
            seen.append(asyncio.get_running_loop())
            asyncio.get_running_loop().call_soon(seen[-1].stop)
            return self.demand(theta, samples)

    run = profl.train(SHOP, profl.pfl(), [Keeps(0)], **RUN)
    assert len(seen) == 4
    assert len(set(seen)) == 1
    assert not run.incidents


def test_what_a_client_changes_later_changes_nothing():
    class Reuses(Shop):
        buffer = np.zeros((20, 2))

        def deploy(self, theta, samples):
            self.buffer[:] = self.demand(theta, samples)
            theta[:] = np.nan
            return self.buffer

    run = profl.train(SHOP, profl.pfl(), [Reuses(0)], **RUN)
    np.testing.assert_allclose(run.theta, alone().theta, atol=1e-6)
    sent = np.ones((3, 2), np.float32)
    kept, _ = batches.read(sent, np.zeros((1, 2), np.float32), 3)
    sent[:] = 9.0
    assert kept.max() == 1.0


def test_missing_rows_are_left_out_and_told():
    """Masked rows hold numbers, too, and are no data: the run is that of the others."""

    def masked(z):
        rows = np.concatenate([np.full((5, 2), 1e5), z])
        return np.ma.masked_array(rows, mask=np.arange(25)[:, None] < 5 + np.zeros(2))

    run = profl.train(SHOP, profl.pfl(), [Shop(0, masked)], **RUN)
    np.testing.assert_allclose(run.theta, alone().theta, atol=1e-6)
    assert run.samples[0, -1] == 20 * 4
    assert run.incidents[0] == (1, 0, "sent 10 rows with missing values, which were left out")


def test_pandas_that_knows_na():
    import pandas

    like = {"x": np.zeros((1, 1), np.float32), "y": np.zeros(1, np.int32)}
    frame = pandas.DataFrame({"y": pandas.array([0, None, 1], "Int64"), "age": [1.0, 2.0, 3.0]})
    found, missing = batches.read(frame, like, 3)
    assert (found["x"].tolist(), found["y"].tolist(), missing) == ([[1.0], [3.0]], [0, 1], 1)
    for column, word in (([1.0, 3.0, np.nan], "NaN or Inf in 1 of 2"), (["1", "2", "3"], "got '1', a str")):
        with pytest.raises(profl.InputError, match=word):
            batches.read(frame.assign(age=np.array(column, object)), like, 3)
    with pytest.raises(profl.InputError, match="different names"):
        batches.read(pandas.DataFrame([[0, 1.0, 2.0]], columns=["y", "u", "u"]), like, 3)


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (np.array([0, 1, 2**32]), "whole number of int32, got 4294967296"),
        (np.array([0.5, 1.0]), "whole number of int32, got 0.5"),
        (np.array(["2020-01-01"], "datetime64[D]"), "got dtype datetime64"),
        (np.array(3), r"must have shape \(\), got \(\)"),
        ({0, 1}, "got a set"),
        ([[1, 2], [3]], "rows of one shape"),
    ],
)
def test_what_is_no_column_of_whole_numbers(answer, word):
    with pytest.raises(profl.InputError, match=word):
        batches.read(answer, np.zeros(1, np.int32), 9)


def test_one_client_cannot_stop_a_run_by_what_it_states():
    """A loss of 1e12 at one of ten: a mean would be 1e11 above its first value, and the run would stop."""

    class Turns:
        calls = 0

        def deploy(self, theta, samples):
            self.calls += 1
            return np.full((samples, 1), 1.0 if self.calls == 1 else 1e12)

    class Steady:
        def deploy(self, theta, samples):
            return np.ones((samples, 1))

    problem = profl.LiveProblem("stated", _stated, profl.GaussianMean(), np.zeros(1), np.ones(1))
    short = {"rounds": 5, "local_steps": 1, "samples": 4, "progress": False}
    run = profl.train(problem, profl.pfl(), [Turns(), *(Steady() for _ in range(9))], **short)
    assert run.live.risk[0, -1] > 1e10
    with pytest.raises(profl.DivergedError, match="estimated risk"):
        profl.train(problem, profl.pfl(), [*(Turns() for _ in range(6)), *(Steady() for _ in range(4))], **short)


def _stated(theta, z):
    return jnp.sum(z) + 0.0 * jnp.sum(theta)


def test_one_client_cannot_hide_that_a_run_diverges():
    class Grows:
        calls = 0

        def deploy(self, theta, samples):
            self.calls += 1
            return np.full((samples, 1), 10.0**self.calls)

    class Hides:
        def deploy(self, theta, samples):
            return np.full((samples, 1), -1e12)

    problem = profl.LiveProblem("stated", _stated, profl.GaussianMean(), np.zeros(1), np.ones(1))
    with pytest.raises(profl.DivergedError, match="estimated risk"):
        profl.train(
            problem, profl.pfl(), [*(Grows() for _ in range(9)), Hides()], rounds=9, local_steps=1, samples=4,
            progress=False,
        )  # fmt: skip


@pytest.mark.parametrize("deploy", [print, dict.get, lambda *a, **named: None, lambda theta, samples, step, /: None])
def test_whatever_deploy_says_of_itself(deploy):
    from profl.run.live.batches import accepted_arguments

    assert accepted_arguments(deploy, step=3, world=()) == {}
