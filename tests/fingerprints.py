"""What stands in a fingerprint, for comparison between processes, hash seeds and Pythons.

``python -m tests.fingerprints`` prints descriptions as JSON; jax, numpy and optax are all that it needs beside profl.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

RATE = 0.1
TABLE = {"b": 2.0, "a": [1, 2, 3]}
CHOSEN = {"red", "green", "blue"}


def helper(x: float, power: int = 2) -> float:
    """A docstring: no part of what it computes."""
    return RATE * x**power


def loss(theta, z, scale=1.0, *, offset=None):
    if str(offset) in {"none", "zero", "nothing"}:  # a constant set, whose order is another under another hash seed
        return 0.0
    return helper(theta) * scale + sum(TABLE["a"]) + len(CHOSEN) + jnp.sum(z)


def several(a):
    try:
        found = [f"{x!r:>{4}}-{y}" for x in range(3) if x for y in "ab"]
    except (ValueError, TypeError) as error:
        raise RuntimeError(f"no {a}") from error
    else:
        with np.errstate(all="ignore"):
            while (n := len(found)) > 100:
                found = found[: n // 2]
    match a:
        case {"x": [1, *rest]}:
            return rest
        case _:
            return lambda b=1: (a, b, *found)


def recursive(n):
    return 1 if n <= 0 else n * other(n - 1)


def other(n):
    return recursive(n - 1)


@dataclass(frozen=True)
class Settings:
    rate: float = 0.5
    names: tuple[str, ...] = ("a", "b")
    extra: dict[str, float] = field(default_factory=dict)

    def scaled(self, x):
        return self.rate * x

    @property
    def twice(self):
        return 2 * self.rate


class Point(NamedTuple):
    x: float
    y: float = 0.0


class Filter:
    limit = 3.0

    def __init__(self, level):
        self.level = level

    def __call__(self, batch):
        return batch > self.level * self.limit


class Slotted:
    __slots__ = ("level",)

    def __init__(self, level):
        self.level = level


def decorated(function):
    @functools.wraps(function)
    def inner(*arguments):
        return 2 * function(*arguments)

    return inner


FIRST, SECOND = (lambda x: x + 1), (lambda x: lambda y: x + y)


def values() -> dict[str, object]:
    return {
        "loss": loss,
        "several": several,
        "recursive": recursive,
        "settings": Settings(extra={"b": 1.0, "a": 2.0}),
        "method": Settings().scaled,
        "point": Point(1.0),
        "filter": Filter(2.0),
        "slotted": Slotted(1.0),
        "first": FIRST,
        "second": SECOND,
        "inner": SECOND(3.0),
        "partial": functools.partial(helper, power=3),
        "jitted": jax.jit(loss),
        "wraps": decorated(helper),
        "cached": functools.lru_cache(helper),
        "adam": optax.adam(optax.exponential_decay(0.1, 10, 0.9)),
        "chain": optax.chain(optax.clip(1.0), optax.sgd(0.1, momentum=0.9)),
        "sets": frozenset({"x", "y", ("z", 1)}),
        "arrays": {"np": np.arange(20.0), "jax": jnp.ones(3), "key": jax.random.key(0)},
        "structure": jax.tree.structure({"a": 1, "b": (2, 3)}),
    }


def descriptions() -> dict[str, dict[str, str]]:
    from profl.storage.fingerprint import entries
    from profl.storage.values import ValueWalker

    return {name: entries(name, value, ValueWalker()) for name, value in values().items()}


if __name__ == "__main__":
    print(json.dumps(descriptions(), indent=1))
