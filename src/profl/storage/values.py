"""What a value is made of, as a tree of short words that are the same in every process.

A function is its name, its code, its defaults, what it caught, and the globals that it reads, helper functions among
them; an object is its class and its attributes; sets and dicts are in an order of their own. Code of Python itself and
of the libraries in ``LIBRARIES`` is known by its name, and by the version of its package.
"""

from __future__ import annotations

import builtins
import enum
import functools
import importlib
import io
import logging
import random
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from profl.storage.hashes import array_words, short_hash
from profl.storage.source import bytecode, class_members, code_words, names_used, object_attributes

LIBRARIES = frozenset(
    {"profl", "jax", "jaxlib", "numpy", "optax", "scipy", "chex", "flax", "equinox", "jaxtyping", "ml_dtypes"}
    | {"pandas", "sklearn", "matplotlib", "flwr", "typer", "rich"}
)
LONG = 80  # characters of a text that are shown
NODES, DEEP = 20_000, 100  # parts that a description may have, and levels


class Node(NamedTuple):
    """A word, the named parts below it, and a hash of both."""

    word: str
    parts: tuple[tuple[str, Node], ...]
    hash: str
    unclear: bool  # whether something in it cannot be told from another one


class ValueWalker:
    """Describes values; ``packages`` are the libraries that were met.

    ``source``: functions by their source, which every Python reads alike; else by their bytecode, which is quicker.
    """

    def __init__(self, source: bool = True) -> None:
        self.source = source
        self.packages: set[str] = set()
        self._known: dict[int, Node] = {}
        self._alive: list[Any] = []  # what was met: an id is that of one object as long as it lives
        self._above: set[int] = set()
        self._count = 0

    def node(self, value: Any) -> Node:
        """What ``value`` is made of."""
        if (word := _plain(value)) is not None:
            return _make_node(word)
        if id(value) in self._known:
            return self._known[id(value)]
        if id(value) in self._above:
            return _make_node(f"again {_name(value if hasattr(value, '__qualname__') else type(value))}")
        self._count += 1
        if self._count > NODES or len(self._above) > DEEP:
            return _make_node(f"a part beyond {NODES} others, or {DEEP} deep", unclear=True)
        self._above.add(id(value))
        try:
            node = self._node(value)
        finally:
            self._above.discard(id(value))
        self._known[id(value)] = node
        self._alive.append(value)
        return node

    def _node(self, value: Any) -> Node:
        describe = _kind(type(value))  # type: ignore[arg-type]
        if describe is not None:
            return describe(self, value)
        if hasattr(value, "__wrapped__"):
            return _make_node(_name(type(value)), [("wrapped", self.node(value.__wrapped__))])
        return self._object(value)

    # -- functions and classes -----------------------------------------------------------------------------------------

    def _function(self, function: types.FunctionType) -> Node:
        code, module = function.__code__, function.__globals__.get("__name__")  # __module__ may be another's
        own = module is None or code.co_filename.startswith("<doctest") or not self._from_library(module)
        parts = [("code", _make_node(self._code(code)))] if own or _top(module) == "profl" else []
        if own:
            names = code.co_varnames[: code.co_argcount][-len(function.__defaults__ or ()) :]
            defaults = {
                **dict(zip(names, function.__defaults__ or (), strict=False)),
                **(function.__kwdefaults__ or {}),
            }
            parts += [(f"default {name}", self.node(value)) for name, value in defaults.items()]
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            parts.append((f"caught {name}", self._cell(cell)))
        if own:
            parts += self._globals(code, function.__globals__)
            more = {name: value for name, value in vars(function).items() if name != "__wrapped__"}
            parts += [(f"attribute {name}", self.node(value)) for name, value in sorted(more.items())]
        line = f" of line {code.co_firstlineno}" if not parts and code.co_name == "<lambda>" else ""
        return _make_node(_name(function) + line, parts)

    def _code(self, code: types.CodeType) -> str:
        return code_words(code) if self.source else bytecode(code)

    def _cell(self, cell: Any) -> Node:
        try:
            return self.node(cell.cell_contents)
        except ValueError:
            return _make_node("nothing yet")

    def _globals(self, code: types.CodeType, known: dict[str, Any]) -> Iterator[tuple[str, Node]]:
        """The globals that are no library's, as deep into modules as the code goes."""
        for name, *attributes in names_used(code):
            if name == "import" and attributes:
                name, value, attributes = attributes[0], _module(attributes[0]), []
            elif name not in known:
                if not hasattr(builtins, name):
                    yield f"global {name}", _make_node("nothing yet")
                continue
            else:
                value = known[name]
            while isinstance(value, types.ModuleType) and attributes and not self._from_library(value.__name__):
                attribute, *attributes = attributes
                name, value = f"{name}.{attribute}", getattr(value, attribute, None)
            yield f"global {name}", self.node(value)

    def _class(self, cls: type) -> Node:
        if self._from_library(cls.__module__):
            return _make_node(_name(cls))
        if issubclass(cls, enum.Enum):
            return _make_node(_name(cls), [(one.name, self.node(one.value)) for one in cls])
        parts = [(f"base {base.__qualname__}", self.node(base)) for base in cls.__bases__ if base is not object]
        for name, value in sorted(vars(cls).items()):
            for part, inner in class_members(cls, name, value):
                parts.append((f"{name}{part}", self.node(inner)))
        return _make_node(_name(cls), parts)

    def _from_library(self, module: Any) -> bool:
        top = _top(module)
        if top in LIBRARIES:
            self.packages.add(top)
            return True
        return top in sys.stdlib_module_names

    # -- objects -------------------------------------------------------------------------------------------------------

    def _object(self, value: Any) -> Node:
        cls = type(value)
        if isinstance(value, _NEVER):
            return _make_node(f"a {_name(cls)}", unclear=True)
        attributes = dict(object_attributes(value))
        if not attributes and not hasattr(value, "__dict__") and not is_dataclass(value):
            return self._reduced(value)
        parts = [(f"attribute {name}", self.node(inner)) for name, inner in attributes.items()]
        return _make_node(_name(cls), [*parts, *self._own_class(cls)])

    def _own_class(self, cls: type) -> list[tuple[str, Node]]:
        return [] if self._from_library(cls.__module__) else [("class", self.node(cls))]

    def _reduced(self, value: Any) -> Node:
        """What a copy would be made from; some objects of compiled code state nothing of the kind."""
        cls = type(value)
        try:
            reduced = value.__reduce_ex__(2)
        except Exception:
            return _make_node(f"a {_name(cls)}", unclear=True)
        if isinstance(reduced, str):
            return _make_node(f"{_name(cls)} {reduced}")
        rest = [list(part) if isinstance(part, Iterator) else part for part in reduced[1:]]
        return _make_node(_name(cls), [("content", self.node(rest)), *self._own_class(cls)])

    def _sequence(self, value: Any) -> Node:
        names = getattr(type(value), "_fields", None) or [f"[{i}]" for i in range(len(value))]
        parts = [(name, self.node(item)) for name, item in zip(names, value, strict=False)]
        return self._container(value, list if isinstance(value, list) else tuple, parts)

    def _set(self, value: Any) -> Node:
        items = sorted((self.node(item) for item in value), key=lambda node: (node.word, node.hash))
        return self._container(value, type(value), [("item", node) for node in items])

    def _mapping(self, value: Mapping[Any, Any]) -> Node:
        pairs = sorted(((self.node(key), self.node(item)) for key, item in value.items()), key=lambda p: p[0][::2])
        named = [(f"[{key.word}]" if not key.parts else f"[{key.word} {key.hash}]", item) for key, item in pairs]
        return self._container(value, dict, named)

    def _container(self, value: Any, plain: type, parts: list[tuple[str, Node]]) -> Node:
        cls = type(value)
        own = [] if cls is plain else self._own_class(cls)
        if not own and all(not node.parts for _, node in parts) and sum(len(n.word) for _, n in parts) < LONG:
            words = ", ".join(f"{name}: {node.word}" if plain is dict else node.word for name, node in parts)
            return _make_node(f"{_name(cls)}({words})", unclear=any(node.unclear for _, node in parts))
        return _make_node(f"{_name(cls)} of {len(parts)}", [*parts, *own])


def _make_node(word: str, parts: Any = (), unclear: bool = False) -> Node:
    parts = tuple(parts)
    text = "\0".join([word, *(f"{name}\0{node.hash}" for name, node in parts)])
    return Node(word, parts, short_hash(text) if parts else word, unclear or any(node.unclear for _, node in parts))


def _plain(value: Any) -> str | None:
    """The word of a value that is nothing but itself."""
    cls = type(value)
    if cls in _NUMBERS:
        return repr(value)
    if cls is str or cls is bytes:
        return repr(value) if len(value) <= LONG else f"{value[:40]!r}... {short_hash(value)}"
    return f"{_name(cls)}.{value.name}" if isinstance(value, enum.Enum) else None


_NUMBERS = frozenset({bool, int, float, complex, type(None), type(Ellipsis)})


def _array(walk: ValueWalker, value: Any) -> Node:
    traced = isinstance(value, jax.core.Tracer)
    return _make_node("an array that is being traced" if traced else array_words(value), unclear=traced)


def _partial(walk: ValueWalker, value: Any) -> Node:
    arguments = [(f"argument {i}", walk.node(item)) for i, item in enumerate(value.args)]
    arguments += [(f"argument {name}", walk.node(item)) for name, item in sorted(value.keywords.items())]
    return _make_node("partial", [("function", walk.node(value.func)), *arguments])


def _method(walk: ValueWalker, value: types.MethodType) -> Node:
    return _make_node(
        _name(value.__func__), [("function", walk.node(value.__func__)), ("of", walk.node(value.__self__))]
    )


def _builtin(walk: ValueWalker, value: Any) -> Node:
    """Compiled code: a library's is known by its name, any other is not known at all."""
    owner = getattr(value, "__self__", None)
    if owner is not None and not isinstance(owner, (types.ModuleType, type)):
        return _make_node(value.__name__, [("of", walk.node(owner))])
    module = getattr(value, "__module__", None) or getattr(owner, "__module__", "builtins")
    known = module is None or walk._from_library(module)
    return _make_node(_name(value), unclear=not known)


def _only_a_name(walk: ValueWalker, value: Any) -> Node:
    return _make_node(
        f"{type(value).__name__} {getattr(value, '__name__', None) or getattr(value, 'name', None) or value}"
    )


def _name(value: Any) -> str:
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None) or type(value).__qualname__
    module = getattr(value, "__module__", None) or type(value).__module__
    return name if module == "builtins" else f"{module}.{name}"


def _top(module: Any) -> str:
    return str(module or "builtins").split(".")[0]


def _module(name: str) -> Any:
    try:
        return sys.modules.get(name) or importlib.import_module(name)
    except Exception:
        return None


_NEVER = (
    *(np.random.Generator, np.random.RandomState, np.random.BitGenerator, random.Random, io.IOBase),
    *(types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType, types.FrameType, weakref.ref),
)
"""What has a state of its own that no later process has."""

_Describe = Callable[[ValueWalker, Any], Node]
_KINDS: list[tuple[Any, _Describe]] = [
    ((np.ndarray, np.generic, jax.Array, jax.core.Tracer), _array),
    (functools.partial, _partial),
    (types.FunctionType, ValueWalker._function),
    (types.MethodType, _method),
    ((types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType, np.ufunc), _builtin),
    ((types.ModuleType, logging.Logger, np.dtype), _only_a_name),
    (jax.tree_util.PyTreeDef, lambda walk, value: _make_node(f"structure {value}")),
    (type, ValueWalker._class),
    ((list, tuple), ValueWalker._sequence),
    ((set, frozenset), ValueWalker._set),
    ((dict, types.MappingProxyType), ValueWalker._mapping),
]


@functools.lru_cache(maxsize=4096)
def _kind(cls: Any) -> _Describe | None:
    """What describes the values of a class; None for objects of any other."""
    if issubclass(cls, type):
        return ValueWalker._class
    return next((describe for kinds, describe in _KINDS if issubclass(cls, kinds)), None)
