"""Compiled code that has grown stale: a global, an attribute or a default that a function read has changed since.

JAX finds compiled code by the identity of functions, so it would run what it traced before. Every part of a problem or
a method leaves a mark here when it is first used (``storage.fingerprint.mark``); one that comes with another mark has
all compiled code forgotten, since what JAX traced inside other programs cannot be told apart.
"""

from __future__ import annotations

from typing import Any

import jax

from profl.storage.fingerprint import mark

MOST = 4096  # parts that are remembered
_SEEN: dict[Any, str] = {}


def refresh(*parts: Any) -> tuple[str, ...]:
    """The marks of these parts, after compiled code of what they were before is forgotten.

    >>> rates = {"rate": 1.0}
    >>> def loss(theta): return rates["rate"] * theta
    >>> before = refresh(loss)
    >>> rates["rate"] = 2.0
    >>> before == refresh(loss), refresh(loss) == refresh(loss)
    (False, True)
    """
    marks = tuple(map(mark, parts))
    changed = False
    for part, now in zip(parts, marks, strict=True):
        try:
            changed |= _SEEN.get(part, now) != now
            _SEEN[part] = now
        except TypeError:  # not hashable: no compiled code is found by it
            continue
    if changed or len(_SEEN) > MOST:
        jax.clear_caches()
        _SEEN.clear()
        refresh(*parts)
    return marks
