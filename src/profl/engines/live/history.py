"""A live run in a checkpoint and back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from profl import checks
from profl.engines.ledger import Ledger, pack, unpack
from profl.engines.live.guard import Guard
from profl.engines.live.spells import Spell
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
    """Write what the next round needs."""
    state, history = pack(live.ledger)
    saved.save(live.ledger.round, state, {**history, **_notes(live)})


def _notes(live: UnderWay) -> dict[str, Any]:
    texts = {name: np.array(json.dumps(getattr(live, name))) for name in ("incidents", "spells")}
    return {**texts, "guard": tuple(map(np.asarray, live.guard))}


def restore(saved: Checkpoints, rounds: int, fresh: UnderWay) -> UnderWay:
    """The run as the newest checkpoint has it; ``fresh`` where there is none."""
    state, history = pack(fresh.ledger)
    found = saved.newest(state, {**history, **_notes(fresh)})
    if found is None:
        return fresh
    if found.round > rounds:
        raise checks.InputError(f"{saved.folder} holds round {found.round}, asked for {rounds} rounds")
    old = found.history
    incidents = tuple((int(r), int(c), str(what)) for r, c, what in json.loads(str(old["incidents"])))
    spells = tuple(Spell(*spell) for spell in json.loads(str(old["spells"])))
    first, high = old["guard"]
    return UnderWay(unpack(found.round, found.state, old), Guard(float(first), int(high)), incidents, spells)
