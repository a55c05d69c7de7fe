"""The code of functions and the content of classes and objects, in words that are the same in every process.

Bytecode differs between minor versions of Python, so a function is described by its source: the syntax tree without
places, docstrings and annotations. Where there is none (``exec``, a prompt, a file that was edited since), its bytecode
stands in, and the words say so: "bytecode 3.11 ...".
"""

from __future__ import annotations

import ast
import dis
import linecache
import sys
import types
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cached_property, lru_cache
from types import CodeType
from typing import Any, NamedTuple

from profl.storage.hashes import short_hash

_IGNORED = frozenset({"ctx", "kind", "type_comment", "type_params", "annotation", "returns", "simple"})
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@lru_cache(maxsize=4096)
def code_words(code: CodeType) -> str:
    """ "source" and a hash of it, or "bytecode 3.11" and a hash of that."""
    node = _node(code)
    if node is None:
        return f"bytecode {sys.version_info[0]}.{sys.version_info[1]} {bytecode(code)}"
    return f"source {short_hash(dump(node))}"


@lru_cache(maxsize=4096)
def bytecode(code: CodeType) -> str:
    """A hash of a code object, good in this process only; sets in it are sorted."""
    consts = [bytecode(const) if isinstance(const, CodeType) else _const(const) for const in code.co_consts]
    return short_hash(
        b"\0".join([code.co_code, repr(consts).encode(), repr((code.co_names, code.co_varnames)).encode()])
    )


def _const(value: Any) -> str:
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(_const, value)))}}}"
    return f"({', '.join(map(_const, value))})" if isinstance(value, tuple) else repr(value)


@lru_cache(maxsize=4096)
def names_used(code: CodeType) -> tuple[tuple[str, ...], ...]:
    """The globals that a code and those within it read, each with the attributes that it takes of them at once.

    Those that no program can name are left out: pytest puts them into the functions of tests, for ``assert``, and
    behind them stands the test that runs.

    >>> import math
    >>> names_used((lambda x: [math.pi * x for _ in range(RATE)]).__code__)
    (('RATE',), ('math', 'pi'), ('range',))
    """
    names: set[tuple[str, ...]] = set()
    chain: tuple[str, ...] = ()
    for step in dis.get_instructions(code):
        if chain and step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            chain = (*chain, str(step.argval))
            continue
        if chain and chain[0].isidentifier():
            names.add(chain)
        chain = (str(step.argval),) if step.opname in _READS else ()
        if step.opname == "IMPORT_NAME":
            names.add(("import", str(step.argval)))
    for const in code.co_consts:
        if isinstance(const, CodeType):
            names.update(names_used(const))
    return tuple(sorted(names))


_READS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")


def dump(node: Any) -> str:
    """A syntax tree in words, without what does not decide what it computes, and without what is empty.

    >>> dump(ast.parse("x: int = 1.0")) == dump(ast.parse("x : float = 1.0  # a rate"))
    True
    """
    if isinstance(node, list):
        return f"[{' '.join(map(dump, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    parts = []
    for name, value in ast.iter_fields(node):
        if name == "body" and isinstance(value, list) and _is_text(value[:1]):
            value = value[1:]
        if isinstance(node, ast.JoinedStr):  # Python 3.12 puts empty texts between the parts of some
            value = [part for part in value if getattr(part, "value", None) != ""]
        if name not in _IGNORED and value is not None and value != []:
            parts.append(f"{name}={dump(value)}")
    return f"{type(node).__name__}({' '.join(parts)})"


def _is_text(body: list[Any]) -> bool:
    """Whether a body begins with a docstring."""
    return bool(body) and isinstance(body[0], ast.Expr) and isinstance(getattr(body[0].value, "value", None), str)


# -- what a class defines, and an object holds -------------------------------------------------------------------------


_GENERATED = frozenset(
    {"__annotate__", "__annotate_func__", "__annotations__", "__annotations_cache__", "__dict__", "__doc__"}
    | {"__dataclass_fields__", "__dataclass_params__", "__match_args__", "__module__", "__qualname__", "__slots__"}
    | {"__weakref__", "__parameters__", "__orig_bases__", "__abstractmethods__", "_abc_impl", "__static_attributes__"}
    | {"__firstlineno__", "__hash__", "__type_params__", "_is_protocol", "__protocol_attrs__", "__getnewargs__"}
    | {"_field_defaults", "_fields", "_make", "_replace", "_asdict", "__replace__", "__non_callable_proto_members__"}
)


_GENERATED_METHODS = frozenset(
    {"__init__", "__new__", "__repr__", "__eq__", "__lt__", "__le__", "__gt__", "__ge__", "__setattr__", "__delattr__"}
    | {"__getstate__", "__setstate__"}
)


def _is_generated(cls: type, name: str, value: Any) -> bool:
    """Whether Python, ``dataclass`` or ``NamedTuple`` made this part of a class from the rest of it."""
    slots = (types.MemberDescriptorType, types.GetSetDescriptorType)
    if name in _GENERATED or isinstance(value, slots) or type(value).__name__ == "_tuplegetter":
        return True
    if name not in _GENERATED_METHODS or not (is_dataclass(cls) or hasattr(cls, "_fields")):
        return False
    return (
        not isinstance(value, types.FunctionType)
        or value.__globals__.get("__name__") != cls.__module__
        or (value.__code__.co_filename == "<string>")
    )


def class_members(cls: type, name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """(suffix of the name, value) of what a class itself defines under a name."""
    if _is_generated(cls, name, value):
        return
    if isinstance(value, (staticmethod, classmethod)):
        yield "", value.__func__
    elif isinstance(value, property):
        yield from ((f" {part}", inner) for part in ("fget", "fset") if (inner := getattr(value, part)) is not None)
    elif isinstance(value, cached_property):
        yield "", value.func
    else:
        yield "", value


def object_attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """(name, value) of fields, attributes and slots, without cached properties."""
    cls, names = type(value), {}
    if is_dataclass(value):
        names = {field.name: None for field in fields(value)}
    for base in cls.__mro__:
        slots = vars(base).get("__slots__", ())
        names |= dict.fromkeys(slots if not isinstance(slots, str) else [slots])
    names |= dict.fromkeys(sorted(getattr(value, "__dict__", {}), key=str))
    for name in names:
        cached = isinstance(getattr(cls, name, None), cached_property)
        if not cached and name not in ("__dict__", "__weakref__", "__wrapped__") and hasattr(value, name):
            yield name, getattr(value, name)


# -- where the source is -----------------------------------------------------------------------------------------------


class _File(NamedTuple):
    nodes: dict[tuple[int, str], list[Any]]  # (first line, name) -> functions
    codes: dict[tuple[int, str], list[CodeType]]


def _node(code: CodeType) -> ast.AST | None:
    """The function in its file, where that still says what the code does."""
    lines = linecache.getlines(code.co_filename)
    file = _parse("".join(lines)) if lines else None
    if file is None:
        return None
    key = (code.co_firstlineno, code.co_name)
    if not any(bytecode(other) == bytecode(code) for other in file.codes.get(key, [])):
        return None
    nodes = file.nodes.get(key, [])
    if len(nodes) > 1:  # lambdas on one line
        nodes = [node for node in nodes if _place(node) == _extent(code)]
    return nodes[0] if len(nodes) == 1 else None


@lru_cache(maxsize=64)
def _parse(text: str) -> _File | None:
    try:
        tree, code = ast.parse(text), compile(text, "", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return None
    nodes: dict[tuple[int, str], list[Any]] = {}
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTIONS):
            first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])
            nodes.setdefault((first, getattr(node, "name", "<lambda>")), []).append(node)
    codes: dict[tuple[int, str], list[CodeType]] = {}
    for inner in _within(code):
        codes.setdefault((inner.co_firstlineno, inner.co_name), []).append(inner)
    return _File(nodes, codes)


def _within(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _within(const)


def _place(node: Any) -> tuple[Any, ...]:
    body = node.body[-1] if isinstance(node.body, list) else node.body
    return body.lineno, body.col_offset, body.end_lineno, body.end_col_offset


def _extent(code: CodeType) -> tuple[Any, ...] | None:
    """From the first to the last place that instructions of a lambda come from: those of its body."""
    places = [(a, c, b, d) for a, b, c, d in code.co_positions() if None not in (a, b, c, d) and (a, c) != (b, d)]
    if not places:
        return None
    return (*min(place[:2] for place in places), *max(place[2:] for place in places))
