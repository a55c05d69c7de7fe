"""Who takes part: ``ENTRIES``, one line for each method of the library, and methods of a user's own by name.

All have the same budget, 200 deployments of a client. A gradient method finds its learning rate itself
(``learning_rate="auto"``); one that cannot takes ``rate``, with which its first step is as long as the first one of
"auto" (``rates.first_rate``). Everything else is a method's documented default.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from profl import checks
from profl.methods import dfo, literal, pfl, pg, pofl, prm, profl, rgd, rrm, two_stage
from profl.methods.method import Method
from profl.objects import import_object

LOCAL_STEPS = 5
"""Deployments of a client in a round; ``prm`` has one, and so a fifth of the budget."""


class Entry(NamedTuple):
    """A method that takes part. ``make(rate)`` where it is to be told a learning rate, else ``make()``."""

    name: str
    make: Callable[..., Method]
    text: str  # how it is made
    told_rate: bool = False
    local_steps: int = LOCAL_STEPS
    source: str = ""  # stands for a user's own code

    def method(self, rate: float | None = None) -> Method:
        return self.make(rate) if self.told_rate else self.make()

    @property
    def identity(self) -> list[str]:
        """What must be equal for a figure of this entry to be found again."""
        return [self.name, self.text, self.source]


def entry(
    name: str, make: Callable[..., Method], text: str, told_rate: bool = False, steps: int = LOCAL_STEPS
) -> Entry:
    return Entry(name, make, text, told_rate, steps)


AUTO: Any = {"learning_rate": "auto"}
ENTRIES: dict[str, Entry] = {
    each.name: each
    for each in (
        Entry("pfl", partial(pfl, **AUTO), 'pfl("auto")'),
        Entry("rgd", partial(rgd, **AUTO), 'rgd("auto")'),
        Entry("rrm", rrm, "rrm(rate)", told_rate=True),
        Entry("dfo", dfo, "dfo(rate)", told_rate=True),
        Entry("two_stage", two_stage, "two_stage()"),
        Entry("pg", partial(pg, **AUTO), 'pg("auto")'),
        Entry("pofl", partial(pofl, **AUTO), 'pofl("auto")'),
        Entry("profl", partial(profl, **AUTO), 'profl("auto")'),
        Entry("profl+shared", partial(profl, **AUTO, share="shrink"), 'profl("auto", share="shrink")'),
        Entry("profl+scaffold", partial(profl, **AUTO, correction="scaffold"), 'profl("auto", correction="scaffold")'),
        Entry("literal", literal, "literal(rate): as printed in the ProFL paper", told_rate=True),
        Entry("prm", prm, "prm()", local_steps=1),
    )
}
"""Add a method in one line; ``text`` is what the page says of how it is made."""


def choose(names: Sequence[str] = (), own: Sequence[str] = ()) -> list[Entry]:
    """The entries called ``names``, all if there are none, and a user's own, as FILE.py:NAME or MODULE:NAME.

    >>> [each.name for each in choose(["prm", "pfl"])]
    ['pfl', 'prm']
    """
    wanted = {checks.one_of("method", name, ENTRIES) for name in names}
    known = [each for name, each in ENTRIES.items() if not wanted or name in wanted]
    mine = [own_entry(spec) for spec in dict.fromkeys(own)]
    return known + mine


def by_identity(identity: Sequence[str]) -> Entry:
    """The entry again, in another process."""
    name = identity[0]
    return ENTRIES[name] if name in ENTRIES else own_entry(name)


def own_entry(spec: str) -> Entry:
    """A user's method: a ``Method``, or what makes one when it is called without arguments.

    Its attribute ``local_steps``, where it has one, says how often a client deploys in a round.
    """
    found = import_object(spec)
    steps = checks.positive_int(f"local_steps of {spec}", getattr(found, "local_steps", LOCAL_STEPS), most=LOCAL_STEPS)
    make = partial(made, spec, found)
    return Entry(spec, make, spec, False, steps, source_of(spec, make()))


def made(spec: str, found: Any) -> Method:
    """The method that ``found`` is or makes; anything else is refused in one sentence."""
    if isinstance(found, Method):
        return found
    if not callable(found):
        raise checks.InputError(f"{spec} must be a profl.methods.Method or make one, got a {type(found).__name__}")
    try:
        method = found()
    except checks.InputError:
        raise
    except Exception as error:
        raise checks.InputError(f"{spec}() raised {type(error).__name__}: {error}") from error
    if not isinstance(method, Method):
        raise checks.InputError(f"{spec}() must return a profl.methods.Method, got a {type(method).__name__}")
    return method


def source_of(spec: str, method: Method) -> str:
    """Twelve digits that stand for a user's file, or for what a module's method says of itself."""
    place = spec.rpartition(":")[0]
    content = Path(place).read_bytes() if place.endswith(".py") else repr(method.settings()).encode()
    return hashlib.sha256(content).hexdigest()[:12]
