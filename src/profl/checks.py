"""Checks of what people pass in. Each error says what was expected, what came, and what to try.

>>> positive_int("rounds", 0)
Traceback (most recent call last):
    ...
profl.checks.InputError: rounds must be a whole number of at least 1, got 0
"""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np


class InputError(ValueError):
    """Something passed to profl cannot be used; the message says what to pass instead."""


class DivergedError(RuntimeError):
    """A run produced values that are not finite; the message names the round, the client and the stage."""


class FailedError(RuntimeError):
    """A federation did not do what was asked of it; the message has the end of the log."""


class TooFewReports(RuntimeError):
    """Too few clients sent something that could be used; ``run`` holds what was done until then."""

    def __init__(self, message: str, run: Any) -> None:
        super().__init__(message)
        self.run = run


def positive_int(name: str, value: Any, least: int = 1) -> int:
    """``value`` as an int of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(value)


def positive(name: str, value: Any) -> float:
    """``value`` as a finite float above zero."""
    number = real(name, value)
    if number <= 0:
        raise InputError(f"{name} must be a finite number above 0, got {value!r}")
    return number


def real(name: str, value: Any) -> float:
    """``value`` as a finite float."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise InputError(f"{name} must be a finite number, got {value!r}")
    return float(value)


def fraction(name: str, value: Any) -> float:
    """``value`` as a float in (0, 1]."""
    number = real(name, value)
    if not 0 < number <= 1:
        raise InputError(f"{name} must lie in (0, 1], got {value!r}")
    return number


def one_of(name: str, value: Any, choices: Iterable[str]) -> str:
    """``value`` if it is one of ``choices``; otherwise an error that lists them and suggests the nearest.

    >>> one_of("case", "prcing", ["housing", "pricing"])
    Traceback (most recent call last):
        ...
    profl.checks.InputError: unknown case 'prcing'; did you mean 'pricing'? There are: housing, pricing
    """
    known = list(choices)
    if value in known:
        return str(value)
    near = nearest(value, known)
    hint = f"; did you mean {near!r}? There are: " if near else "; there are: "
    raise InputError(f"unknown {name} {value!r}{hint}{', '.join(known)}")


def nearest(value: Any, known: Iterable[str]) -> str | None:
    """The name that somebody who wrote ``value`` may have meant.

    >>> nearest("gama", ["base", "gamma"]), nearest("gaussian", ["GaussianMean", "ClassMeans"]), nearest("x", ["gamma"])
    ('gamma', 'GaussianMean', None)
    """
    if not isinstance(value, str):
        return None
    names = {str(name).lower(): str(name) for name in known}
    near = difflib.get_close_matches(value.lower(), names, n=1, cutoff=0.5)
    return names[near[0]] if near else None


MOST_TEXT = 500  # characters of somebody else's words


def words(said: Any) -> str:
    """What somebody else said, an exception for one, as it may be shown and kept: one line, no control codes, cut.

    >>> words("no\\x1b[2J data\\n\\tat all"), len(words("x" * 9000)), words(None)
    ('no [2J data at all', 500, 'None')
    """
    try:
        text = str(said)
    except Exception:  # a __str__ of a stranger's
        text = f"a {type(said).__name__} that cannot be shown"
    text = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * MOST_TEXT]).split())
    return text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 3] + "..."


def client_weights(weights: Any, clients: int) -> np.ndarray:
    """The weights alpha_i: None gives equal ones; otherwise they must be non-negative and sum to one."""
    if weights is None:
        return np.full(clients, 1.0 / clients)
    try:
        array = np.asarray(weights, dtype=float)
    except (TypeError, ValueError) as error:
        raise InputError(f"weights must hold one number per client, got {words(repr(weights))}") from error
    if array.shape != (clients,):
        raise InputError(f"weights must hold one number per client ({clients}), got shape {array.shape}")
    if not np.all(np.isfinite(array)) or np.any(array < 0):
        raise InputError(f"weights must be non-negative and finite, got {array.tolist()}")
    if abs(array.sum() - 1) > 1e-6:
        raise InputError(f"weights must sum to 1, got a sum of {array.sum():.6g}; divide them by their sum")
    return array / array.sum()


def client_counts(samples: Any, clients: int) -> np.ndarray:
    """Samples per client and step: one number for all, or one for each."""
    counts = np.asarray(samples)
    if counts.ndim == 0:
        return np.full(clients, positive_int("samples", samples), dtype=np.int32)
    if counts.shape != (clients,):
        raise InputError(
            f"samples must be one number or one per client ({clients}), got an array of shape {counts.shape}"
        )
    return np.array([positive_int(f"samples[{i}]", n) for i, n in enumerate(counts.tolist())], dtype=np.int32)


def finite_tree(name: str, tree: Any) -> None:
    """Refuse NaN and Inf anywhere in a pytree, naming the leaf."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if not np.all(np.isfinite(np.asarray(leaf))):
            raise InputError(f"{name} must be finite, got NaN or Inf in {name}{jax.tree_util.keystr(path)}")


def same_structure(name: str, tree: Any, like: Any) -> None:
    """Refuse a pytree whose structure, or the shape of a leaf, differs from ``like``."""
    got, expected = _signature(tree), _signature(like)
    if got != expected:
        raise InputError(f"{name} must have the structure and shapes {expected}, got {got}")


def _signature(tree: Any) -> str:
    return str(jax.tree.map(lambda leaf: tuple(np.shape(leaf)), tree))
