"""Fingerprints: what a run reads is in them, and the same program has the same ones wherever it runs."""

from __future__ import annotations

import functools
import json
import logging
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import FunctionType, SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import profl
from profl.problem.validation.functions import clear_stale_code
from profl.storage import source
from profl.storage.fingerprint import SHOWN, WIDTH, describe, difference, entries, local_hash
from profl.storage.hashes import short_hash
from profl.storage.values import ValueWalker
from tests import fingerprints as made

ROOT = Path(__file__).parent.parent

RECORDED = {  # made by Python 3.11; 3.12 and 3.13 agree
    "loss": "672097332d74",
    "several": "2b0798862d67",
    "recursive": "98a8271c7d04",
    "settings": "50c4c2858576",
    "method": "18692e916546",
    "point": "c697aafe9857",
    "filter": "f41b1703b248",
    "slotted": "9b2c42376c47",
    "first": "e09b910c193a",
    "second": "5dde9ca72df7",
    "inner": "5f7d55f05251",
    "partial": "f3e39344adb9",
    "wraps": "07f92e498015",
    "cached": "3bfe9ab39696",
    "sets": "a2ff32f80717",
    "structure": "b4791b2b53b2",
}


def words(value):
    return entries("loss", value, ValueWalker())


def changed(function, **globals_):
    """The same function that finds other globals."""
    new = FunctionType(
        function.__code__, {**function.__globals__, **globals_}, function.__name__, function.__defaults__
    )
    new.__qualname__, new.__kwdefaults__ = function.__qualname__, function.__kwdefaults__
    return new


def with_defaults(function, *values, **named):
    new = changed(function)
    new.__defaults__, new.__kwdefaults__ = values or function.__defaults__, named or function.__kwdefaults__
    return new


class Other(made.Filter):
    limit = 4.0


def filtered(**named):
    found = made.Filter(2.0)
    vars(found).update(named)
    return found


DIFFERENT = {
    "a global": (made.loss, changed(made.loss, TABLE={"a": [1, 2, 4], "b": 2.0}), "loss: global TABLE was dict"),
    "a global of a helper": (
        made.loss,
        changed(made.loss, helper=changed(made.helper, RATE=0.2)),
        "loss: global helper, global RATE was 0.1, is 0.2",
    ),
    "a helper": (
        made.loss,
        changed(made.loss, helper=lambda x: x),
        "loss: global helper was tests.fingerprints.helper",
    ),
    "a set": (made.loss, changed(made.loss, CHOSEN={"red"}), "loss: global CHOSEN was set('blue', 'green', 'red')"),
    "a default": (made.loss, with_defaults(made.loss, 2.0), "loss: default scale was 1.0, is 2.0"),
    "a default by name": (made.loss, with_defaults(made.loss, offset=1), "loss: default offset was None, is 1"),
    "what was caught": (made.SECOND(3.0), made.SECOND(4.0), "loss: caught x was 3.0, is 4.0"),
    "an optimiser": (optax.sgd(0.01), optax.sgd(0.09), "step_size was -0.01, is -0.09"),
    "deep in an optimiser": (
        optax.chain(optax.clip(1.0), optax.adam(optax.exponential_decay(0.1, 10, 0.9))),
        optax.chain(optax.clip(1.0), optax.adam(optax.exponential_decay(0.1, 10, 0.8))),
        "caught decay_rate was 0.9, is 0.8",
    ),
    "an attribute": (filtered(), filtered(level=2.5), "loss: attribute level was 2.0, is 2.5"),
    "a slot": (made.Slotted(1), made.Slotted(2), "loss: attribute level was 1, is 2"),
    "a class": (made.Filter(2.0), Other(2.0), "loss was tests.fingerprints.Filter, is tests.test_fingerprint.Other"),
    "a field": (made.Settings(), replace(made.Settings(), rate=1.0), "loss: attribute rate was 0.5, is 1.0"),
    "a method's object": (
        made.Settings().scaled,
        made.Settings(2.0).scaled,
        "loss: of, attribute rate was 0.5, is 2.0",
    ),
    "a partial": (functools.partial(max, 1), functools.partial(max, 2), "loss: argument 0 was 1, is 2"),
    "under jit": (jax.jit(made.SECOND(1)), jax.jit(made.SECOND(2)), "loss: wrapped, caught x was 1, is 2"),
    "under wraps": (made.decorated(made.FIRST), made.decorated(made.SECOND), "loss: caught function, code was"),
    "lambdas on a line": (made.FIRST, made.SECOND, "loss: code was source"),
    "an array": (made.SECOND(np.ones(3)), made.SECOND(np.ones(3, np.float32)), "caught x was float64(3,) [1.0, 1.0"),
    "a long array": (made.SECOND(np.zeros(99)), made.SECOND(np.arange(99.0)), "loss: caught x was float64(99,)"),
    "a type": ([1], [1.0], "loss was list(1), is list(1.0)"),
    "a dict": ({"a": 1}, {"a": 2}, "loss was dict(['a']: 1), is dict(['a']: 2)"),
    "a module's attribute": (
        changed(made.several, np=SimpleNamespace(errstate=1)),
        changed(made.several, np=SimpleNamespace(errstate=2)),
        "loss: global np, attribute errstate was 1, is 2",
    ),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_a_difference_is_named(case):
    first, second, message = DIFFERENT[case]
    told = difference(words(first), words(second))
    assert any(message in line for line in told), told
    assert describe(first) != describe(second)
    assert local_hash(first) != local_hash(second)
    assert words(first) == words(first)


def test_class_attributes_and_methods_count(monkeypatch):
    before, quick = words(made.Filter(2.0)), local_hash(made.Filter(2.0))
    monkeypatch.setattr(made.Filter, "limit", 5.0)
    assert difference(before, words(made.Filter(2.0))) == ["loss: class, limit was 3.0, is 5.0"]
    assert local_hash(made.Filter(2.0)) != quick
    monkeypatch.undo()
    monkeypatch.setattr(made.Filter, "__call__", lambda self, batch: batch)
    assert "loss: class, __call__" in difference(before, words(made.Filter(2.0)))[0]


def test_what_does_not_decide_what_is_computed_does_not_count():
    first = "def f(x: int) -> int:\n    '''A remark.'''\n    return x + 1  # and another\n"
    second = "\n\ndef f(x):\n    return (x +\n        1)\n"
    dumped = [source.dump(source.ast.parse(text).body[0]) for text in (first, second)]
    assert dumped[0] == dumped[1]
    assert describe({"b": 1, "a": 2}) == describe({"a": 2, "b": 1})
    assert describe(changed(made.helper, UNUSED=3)) == describe(made.helper)
    problem = profl.cases.pricing(clients=2)
    before = words(problem.family), words(problem)
    assert problem._like is not None  # what is computed and kept is not described
    assert (words(problem.family), words(problem)) == before


def test_the_same_program_in_another_process_and_under_another_hash_seed():
    code = "import json, tests.fingerprints as made; print(json.dumps(made.descriptions()))"
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, check=True)
    assert json.loads(found.stdout) == json.loads(json.dumps(made.descriptions()))


def test_the_same_program_under_another_python():
    """Whoever runs this has these, whatever the Python. Other versions of optax have other optimisers."""
    found = {name: short_hash(json.dumps(words(value))) for name, value in made.values().items()}
    assert {name: found[name] for name in RECORDED} == RECORDED
    assert not any("bytecode" in word for name in found for word in words(made.values()[name]).values())


def test_without_a_source_the_bytecode_stands_in_and_says_so():
    scope: dict[str, FunctionType] = {}
    exec("def f(x):\n    return x in {'a', 'b'}", scope)
    assert words(scope["f"])["loss: code"].startswith(f"bytecode {sys.version_info[0]}.{sys.version_info[1]} ")


@pytest.mark.parametrize(
    "part",
    [np.random.default_rng(0), threading.Lock(), (n for n in range(3)), sys.__stdin__],
    ids=lambda p: str(type(p)),
)
def test_what_cannot_be_told_apart_needs_a_version(part):
    with pytest.raises(profl.InputError, match=r"loss: caught x is a .*: it cannot be told.*pass version='1'"):
        words(made.SECOND(part))
    assert entries("loss", made.SECOND(part), ValueWalker(), version="1")["loss: code"].startswith("source")


def test_what_looks_hard_and_is_not():
    assert words(made.SECOND(logging.getLogger("shop")))["loss: caught x"] == "Logger shop"
    assert words(made.SECOND(object()))["loss: caught x"] == "object"
    loop: list[object] = []
    loop.append(loop)
    assert describe(loop) == describe(loop)
    deep: list[object] = []
    for _ in range(80):
        deep = [deep, deep, 1.0]
    assert len(words(deep)) < 500
    for _ in range(10_000):
        deep = [deep]
    with pytest.raises(profl.InputError, match=r"100 deep.*it cannot be told"):
        words(deep)


def test_differences_are_short():
    long = {"a": "x" * 5000, **{f"b{i}": "1" for i in range(50)}}
    other = {"a": "x" * 4999 + "y", **{f"b{i}": "2" for i in range(50)}}
    told = difference(long, other)
    assert len(told) == SHOWN + 1
    assert told[-1] == f"and {51 - SHOWN} more"
    assert all(len(line) < 2 * WIDTH + 50 for line in told)
    assert told[0].split(", is ")[0] != told[0].split(", is ")[1]


RATE = 1.0


def scaled(theta, z):
    return -RATE * jnp.sum(theta * z) + 0.5 * jnp.sum(theta**2)


def test_a_changed_global_is_seen_by_the_next_run(monkeypatch):
    """Compiled code is found by the identity of functions: without a look at what they read it would run again."""
    problem = replace(profl.cases.pricing(clients=2), loss=scaled)
    settings = {"rounds": 1, "local_steps": 1, "samples": 10, "seeds": [0], "progress": False}

    def step():  # theta + 0.01 (RATE z - theta), with the same z every time
        return profl.simulate(problem, profl.pfl(0.01), **settings, initial=jnp.full(5, 2.0)).theta[0, 1] - 0.99 * 2.0

    first = step()
    monkeypatch.setitem(globals(), "RATE", 3.0)
    np.testing.assert_allclose(step(), 3 * first, rtol=1e-4)


def test_a_look_at_what_functions_read_is_cheap():
    """A thousandth of a second, by the best of a few: a run of the smallest case takes a hundred times that."""
    import timeit

    problem, method = profl.cases.pricing(clients=2), profl.profl()
    refresh = functools.partial(clear_stale_code, *problem.functions, method, made.loss)
    assert min(timeit.repeat(refresh, number=10, repeat=5)) / 10 < 0.002


def asserting(theta):
    assert theta.shape == (2,)
    return theta


def test_what_pytest_puts_into_a_function_is_no_part_of_it(request):
    """Its assertions lead to the test that runs: in every other test the function would be another one."""
    assert "@pytest_ar" in asserting.__code__.co_names
    before = local_hash(asserting)
    request.node.user_properties.append(("another", "test"))
    assert local_hash(asserting) == before
    names = {name for chain in source.names_used(asserting.__code__) for name in chain}
    assert not any("pytest" in name for name in names)
