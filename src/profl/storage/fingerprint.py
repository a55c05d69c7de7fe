"""Values in words that stay the same from process to process, and the one hash of arrays behind them.

What a run is made of is described so: the checkpoint of another run has other words.
"""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any

import jax
import numpy as np

DEPTH = 6
"""How far into nested values a description goes."""


def describe(value: Any, depth: int = DEPTH) -> str:
    """A value in words that hold in every process: no addresses; functions by their name and their code.

    >>> print(describe(functools.partial(max, 1.0)), describe({"a": [1, "b"]}))
    partial(builtins.max, [1.0], {}) {'a': [1, 'b']}
    """
    if depth == 0 or value is None or isinstance(value, (bool, int, float, str)):
        return repr(value) if depth else "..."
    below = functools.partial(describe, depth=depth - 1)
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        return digest(value)
    if isinstance(value, functools.partial):
        return f"partial({below(value.func)}, {below(list(value.args))}, {below(value.keywords)})"
    if isinstance(value, types.MethodType):
        return f"{below(value.__func__)} of {below(value.__self__)}"
    if isinstance(value, types.FunctionType):
        return _function(value, depth)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {below(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple, set, frozenset)):
        return "[" + ", ".join(below(item) for item in value) + "]"
    if is_dataclass(value) and not isinstance(value, type):
        parts = ", ".join(f"{name}={text}" for name, text in describe_fields(value, depth - 1))
        return f"{type(value).__qualname__}({parts})"
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def describe_fields(value: Any, depth: int = DEPTH) -> list[tuple[str, str]]:
    """The fields of a dataclass, each described."""
    return [(field.name, describe(getattr(value, field.name), depth)) for field in fields(value)]


def _function(function: types.FunctionType, depth: int) -> str:
    code = hashlib.sha256(_code(function.__code__)).hexdigest()[:12]
    caught = [describe(cell.cell_contents, depth - 1) for cell in function.__closure__ or ()]
    return f"{function.__module__}.{function.__qualname__} {code}{' ' + str(caught) if caught else ''}"


def _code(code: types.CodeType) -> bytes:
    """What a function does, without the file and the line where it stands."""
    consts = b"".join(_code(c) if isinstance(c, types.CodeType) else repr(c).encode() for c in code.co_consts)
    return code.co_code + consts + " ".join(code.co_names).encode()


def digest(tree: Any) -> str:
    """The first 16 digits of the sha256 of a tree's arrays and of where they stand in it.

    >>> digest({"a": np.zeros(2)}) == digest({"a": np.zeros(2)}), digest(np.zeros(2)) == digest(np.zeros((2, 1)))
    (True, False)
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return sha256((jax.tree_util.keystr(path), leaf) for path, leaf in leaves)[:16]


def sha256(named: Iterable[tuple[str, Any]]) -> str:
    """Over the names, types, shapes and numbers of named arrays, in the order given."""
    total = hashlib.sha256()
    for name, leaf in named:
        array = np.asarray(leaf)
        total.update(f"{name} {array.dtype} {array.shape}".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()
