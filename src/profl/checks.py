"""Checks of what people pass in. Each error says what was expected, what came, and what to try.

>>> positive_int("rounds", 0)
Traceback (most recent call last):
    ...
profl.checks.InputError: rounds must be a whole number of at least 1, got 0
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import numbers
import os
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any, TypeVar

import jax
import numpy as np

F = TypeVar("F", bound=Callable[..., Any])
MOST_COUNT = 2**31 - 1  # what the compiled programs count with 32 bits


class InputError(ValueError):
    """Something passed to profl cannot be used; the message says what to pass instead."""


class CallError(InputError, TypeError):
    """A call with arguments that a function does not have, or without those that it needs."""


class DivergedError(RuntimeError):
    """A run produced values that are not finite; the message names the round, the client and the stage."""


class FailedError(RuntimeError):
    """A federation did not do what was asked of it; the message has the end of the log."""


class TooFewReports(RuntimeError):
    """Too few clients sent something that could be used; ``run`` holds what was done until then."""

    def __init__(self, message: str, run: Any) -> None:
        super().__init__(message)
        self.run = run


def positive_int(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """``value`` as an int of at least ``least`` and at most ``most``."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise InputError(f"{name} must be a whole number of at least {least}, got {shown(value)}")
    number = int(value)
    if most is not None and number > most:
        raise InputError(f"{name} must be a whole number of at most {most}, got {shown(value)}")
    return number


def positive(name: str, value: Any) -> float:
    """``value`` as a finite float above zero."""
    number = real(name, value)
    if number <= 0:
        raise InputError(f"{name} must be a finite number above 0, got {value!r}")
    return number


def real(name: str, value: Any) -> float:
    """``value`` as a finite float."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise InputError(f"{name} must be a finite number, got {shown(value)}")
    return float(value)


def fraction(name: str, value: Any) -> float:
    """``value`` as a float in (0, 1]."""
    number = real(name, value)
    if not 0 < number <= 1:
        raise InputError(f"{name} must lie in (0, 1], got {value!r}")
    return number


def numbers_of(name: str, value: Any, expected: str) -> np.ndarray:
    """``value`` as an array of floats; ``expected`` says in words what it must hold.

    >>> numbers_of("demand", [[1.0], [1.0, 2.0]], "a table of numbers")
    Traceback (most recent call last):
        ...
    profl.checks.InputError: demand must be a table of numbers, got [[1.0], [1.0, 2.0]]
    """
    try:
        if value is None or np.asarray(value).dtype.kind in "US":  # NumPy takes None for NaN, and "5" for 5
            raise TypeError
        return np.asarray(value, dtype=float)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be {expected}, got {shown(value)}") from error


def flag(name: str, value: Any) -> bool:
    """``value`` if it is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise InputError(f"{name} must be True or False, got {shown(value)}")
    return bool(value)


def text(name: str, value: Any) -> str:
    """``value`` if it is a word or several."""
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{name} must be a text that is not empty, got {shown(value)}")
    return value


def path(name: str, value: Any) -> str:
    """``value`` as the text of a path; ``name`` is the argument that holds it.

    >>> path("checkpoint", 2)
    Traceback (most recent call last):
        ...
    profl.checks.InputError: checkpoint must be a path such as 'runs/first', got 2
    """
    place = os.fspath(value) if isinstance(value, (str, os.PathLike)) else ""
    if not isinstance(place, str) or not place:
        raise InputError(f"{name} must be a path such as 'runs/first', got {shown(value)}")
    return place


def function(name: str, signature: str, value: Any) -> Any:
    """``value`` if it can be called; a class is taken for one whose object was meant.

    >>> function("report", "(line)", print) is print
    True
    """
    if isinstance(value, type):
        raise InputError(f"{name} must be a function {signature}, got a class; try {value.__name__}(...)")
    if not callable(value):
        raise InputError(f"{name} must be a function {signature}, got {shown(value)}")
    return value


def functions(name: str, signature: str, value: Any) -> tuple[Any, ...]:
    """One function, or several, as a tuple."""
    several = isinstance(value, Iterable) and not isinstance(value, (str, type)) and not callable(value)
    return tuple(function(name, signature, each) for each in (value if several else (value,)))


def one_of(name: str, value: Any, choices: Iterable[str]) -> str:
    """``value`` if it is one of ``choices``; otherwise an error that lists them and suggests the nearest.

    >>> one_of("case", "prcing", ["housing", "pricing"])
    Traceback (most recent call last):
        ...
    profl.checks.InputError: unknown case 'prcing'; did you mean 'pricing'? There are: housing, pricing
    """
    known = list(choices)
    if isinstance(value, str) and value in known:
        return str(value)
    raise InputError(_unknown(name, value, known))


def _unknown(name: str, value: Any, known: list[str]) -> str:
    near = nearest(value, known)
    hint = f"; did you mean {near!r}? There are: " if near else "; there are: "
    return f"unknown {name} {shown(value)}{hint}{', '.join(known)}"


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


def explain_call(called: F) -> F:
    """A function or a class, such that a call which does not fit its arguments raises ``CallError``, which names them.

    A call that fits costs nothing more.

    >>> @explain_call
    ... def train(problem, *, rounds, seed=0):
    ...     return rounds
    >>> train("shop", rounds=1, seeds=[0])
    Traceback (most recent call last):
        ...
    profl.checks.CallError: unknown argument of train 'seeds'; did you mean 'seed'? There are: problem, rounds, seed
    """
    if isinstance(called, type):
        called.__init__ = explain_call(called.__init__)  # type: ignore[misc]
        return called

    @functools.wraps(called)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return called(*arguments, **named)
        except TypeError:
            _check_call(called, arguments, named)
            raise

    return call  # type: ignore[return-value]


def _check_call(called: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Raise ``CallError`` where the arguments are not those of ``called``."""
    signature, name = inspect.signature(called), called.__qualname__.removesuffix(".__init__")
    known = [word for word in signature.parameters if word != "self"]
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values()):
        for word in named:
            if word not in known:
                raise CallError(_unknown(f"argument of {name}", word, known)) from None
    try:
        signature.bind(*arguments, **named)
    except TypeError as error:
        by_name = [word for word in known if signature.parameters[word].kind is inspect.Parameter.KEYWORD_ONLY]
        others = ", ".join(word for word in known if word not in by_name)
        hint = f"; by name: {', '.join(by_name)}" if by_name else ""
        raise CallError(f"{name}: {error}; there are: {others}{hint}") from None


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


MOST_SHOWN = 100  # characters of a value in a message


def shown(value: Any) -> str:
    """A value as a message shows it, in one line.

    >>> shown(0), len(shown([1] * 99)), shown(InputError)
    ('0', 100, 'the class InputError; try InputError()')
    """
    if isinstance(value, (type, FunctionType)):
        kind = "class" if isinstance(value, type) else "function"
        return f"the {kind} {value.__name__}; try {value.__name__}()"
    try:
        line = words(repr(value))
    except Exception:  # a __repr__ of a stranger's
        line = f"a {type(value).__name__}"
    return line if len(line) <= MOST_SHOWN else line[: MOST_SHOWN - 3] + "..."


def client_weights(weights: Any, clients: int) -> np.ndarray:
    """The weights alpha_i: None gives equal ones; otherwise they must be non-negative and sum to one."""
    if weights is None:
        return np.full(clients, 1.0 / clients)
    array = numbers_of("weights", weights, "one number per client")
    if array.shape != (clients,):
        raise InputError(f"weights must hold one number per client ({clients}), got shape {array.shape}")
    if not np.all(np.isfinite(array)) or np.any(array < 0):
        raise InputError(f"weights must be non-negative and finite, got {array.tolist()}")
    if abs(array.sum() - 1) > 1e-6:
        raise InputError(f"weights must sum to 1, got a sum of {array.sum():.6g}; divide them by their sum")
    return array / array.sum()


def client_counts(samples: Any, clients: int) -> np.ndarray:
    """Samples per client and step: one number for all, or one for each."""
    numbers_of("samples", samples, f"a whole number, or one per client ({clients})")
    counts = np.asarray(samples)
    if counts.ndim == 0:
        return np.full(clients, positive_int("samples", counts.item(), most=MOST_COUNT), dtype=np.int32)
    if counts.shape != (clients,):
        raise InputError(
            f"samples must be one number or one per client ({clients}), got an array of shape {counts.shape}"
        )
    each = [positive_int(f"samples[{i}]", n, most=MOST_COUNT) for i, n in enumerate(counts.tolist())]
    return np.array(each, dtype=np.int32)


def finite_tree(name: str, tree: Any) -> None:
    """Refuse NaN and Inf anywhere in a pytree, naming the leaf."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if np.asarray(leaf).dtype.kind not in "fiubcV":
            raise InputError(f"{name} must hold numbers, got {shown(leaf)}")
        if not np.all(np.isfinite(np.asarray(leaf))):
            raise InputError(f"{name} must be finite, got NaN or Inf in {name}{jax.tree_util.keystr(path)}")


def same_structure(name: str, tree: Any, like: Any) -> None:
    """Refuse a pytree whose structure, or the shape of a leaf, differs from ``like``."""
    got, expected = _signature(tree), _signature(like)
    if got != expected:
        raise InputError(f"{name} must have the structure and shapes {expected}, got {got}")


def _signature(tree: Any) -> str:
    return str(jax.tree.map(lambda leaf: tuple(np.shape(leaf)), tree))
