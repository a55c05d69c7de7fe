"""A live run in a checkpoint and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from profl import checks
from profl.run.live.filter_alerts import Spell
from profl.run.live.guard import Guard
from profl.run.run_history import Ledger, item_shapes, pack, unpack
from profl.storage.checkpoints import Checkpoints

Incident = tuple[int, int, str]
"""(round, client, what happened)"""


REFUSED = "sent a report that is not finite, outside the model space or absurdly far: refused"


def refusals(before: Ledger, after: Ledger) -> tuple[Incident, ...]:
    """Whose report could not be used in the last round."""
    new = np.asarray(after.carry.refused) > np.asarray(before.carry.refused)
    return tuple((after.round, client, REFUSED) for client in np.flatnonzero(new).tolist())


def tell(report: Callable[[str], None] | None, incidents: tuple[Incident, ...]) -> None:
    """One sentence per incident, where somebody listens."""
    if report is not None:
        for round_, client, what in incidents:
            report(f"round {round_}, client {client}: {what}")


def in_order(incidents: tuple[Incident, ...], spells: tuple[Spell, ...]) -> tuple[Incident, ...]:
    """All that is to be told of a run, by rounds."""
    return tuple(sorted((*incidents, *(spell.incident for spell in spells)), key=lambda told: told[0]))


class UnderWay(NamedTuple):
    """A live run under way."""

    ledger: Ledger
    guard: Guard = Guard()
    incidents: tuple[Incident, ...] = ()
    spells: tuple[Spell, ...] = ()  # of much that the filter dropped


def keep(saved: Checkpoints, live: UnderWay) -> None:
    """Write what the next round needs, and what is new in the history."""
    state, lists = pack(live.ledger)
    saved.save(live.ledger.round, state, {**lists, "incidents": live.incidents}, _notes(live))


def _notes(live: UnderWay) -> dict[str, Any]:
    """What is short, and not only added to."""
    return {"spells": [_plain(spell) for spell in live.spells], "guard": _plain(live.guard)}


def _plain(values: Iterable[Any]) -> list[Any]:
    return [value.tolist() if hasattr(value, "tolist") else value for value in values]


def restore(saved: Checkpoints, rounds: int, fresh: UnderWay) -> UnderWay:
    """The run as the newest checkpoint has it; ``fresh`` where there is none. What fails lets the folder go."""
    with saved.closed_on_failure():
        found = saved.newest(pack(fresh.ledger)[0], {**item_shapes(fresh.ledger), "incidents": (0, 0, "")})
        if found is None:
            return fresh
        if found.round > rounds:
            raise checks.InputError(f"{saved.folder} holds round {found.round}, asked for {rounds} rounds")
    incidents = tuple((int(r), int(c), str(what)) for r, c, what in found.lists["incidents"])
    spells = tuple(Spell(*spell) for spell in found.notes["spells"])
    return UnderWay(unpack(found.round, found.state, found.lists), Guard(*found.notes["guard"]), incidents, spells)
