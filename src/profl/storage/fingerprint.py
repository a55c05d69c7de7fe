"""Fingerprints: what a run is made of, in words that are the same in every process.

``entries`` names what a value is made of, one short word each, so that it can be said what differs between two runs:
"loss: global RATE was 0.1, is 0.2".
"""

from __future__ import annotations

from typing import Any

from profl.checks import InputError, words
from profl.storage.hashes import short_hash
from profl.storage.values import Node, ValueWalker

MAX_ENTRIES = 300
"""Of one value; what lies deeper is in a hash."""

SHOWN = 5  # differences in a message
WIDTH = 160  # characters of a word in a message


def describe(value: Any) -> str:
    """A value in one line that holds in every process: what it is, and a hash of what it is made of.

    >>> describe(0.5), describe({2, 1}) == describe({1, 2}), describe([1]) == describe([2])
    ('0.5', True, False)
    """
    return _summary(ValueWalker().node(value))


def local_hash(value: Any) -> str:
    """A hash that changes when something changes that a value or its functions read; good in this process only."""
    return ValueWalker(source=False).node(value).hash


def entries(name: str, value: Any, walk: ValueWalker, version: str | None = None) -> dict[str, str]:
    """What a value is made of, by names that begin with ``name``.

    Raises ``InputError`` where a part of it cannot be told from another one in a later process, unless ``version``
    stands for those.

    >>> def loss(theta, scale=2.0): return scale * theta
    >>> words = entries("loss", loss, ValueWalker())
    >>> list(words), words["loss: default scale"]
    (['loss', 'loss: code', 'loss: default scale'], '2.0')
    """
    root = walk.node(value)
    if version is None and root.unclear:
        place, what = _unclear(root)
        raise InputError(
            f"{_cut(_join(name, name, place))} is {_cut(what)}: it cannot be told from another one in a later process; "
            "pass version='1' to the problem, and another word whenever it changes"
        )
    words_by_place: dict[str, str] = {}
    expanded: set[str] = set()
    level: list[tuple[str, Node]] = [(name, root)]
    while level:
        deeper: list[tuple[str, Node]] = []
        for place, node in level:
            if node.parts and (node.hash in expanded or len(words_by_place) + len(deeper) > MAX_ENTRIES):
                words_by_place[place] = _summary(node)
                continue
            words_by_place[place] = node.word
            expanded.add(node.hash)
            deeper += [(_join(name, place, part), inner) for part, inner in node.parts]
        level = deeper
    return words_by_place


def _join(name: str, place: str, part: str) -> str:
    return place + (": " if place == name else ", ") + part if part else place


def _summary(node: Node) -> str:
    return f"{node.word} {node.hash}" if node.parts else node.word


def _unclear(node: Node) -> tuple[str, str]:
    """(where, what) cannot be told."""
    for part, inner in node.parts:
        if inner.unclear:
            place, what = _unclear(inner)
            return f"{part}, {place}" if place else part, what
    return "", node.word


def difference(saved: dict[str, str], own: dict[str, str]) -> list[str]:
    """What differs between two runs, in a few words each; an entry of one run alone where nothing above it differs.

    >>> difference({"a": "1", "b": "2"}, {"a": "1", "b": "3"})
    ['b was 2, is 3']
    """
    names = [name for name in {**saved, **own} if saved.get(name) != own.get(name)]
    both = [name for name in names if name in saved and name in own]
    reported = both + [name for name in names if name not in both and not any(_inside(name, other) for other in both)]
    lines = [f"{_cut(name)} was {_cut(saved.get(name))}, is {_cut(own.get(name))}" for name in sorted(reported)]
    return lines if len(lines) <= SHOWN else [*lines[:SHOWN], f"and {len(lines) - SHOWN} more"]


def _inside(name: str, other: str) -> bool:
    return name.startswith((f"{other}: ", f"{other}, "))


def _cut(word: str | None) -> str:
    if word is None:
        return "nothing"
    word = words(word) if not word.isprintable() else word  # a file's or a node's: somebody else's
    return word if len(word) <= WIDTH else f"{word[: WIDTH - 16]}... {short_hash(word)}"
