"""A live run in a checkpoint and back."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from profl import checks
from profl.engines.guard import Guard
from profl.engines.rounds import Server, pack, unpack
from profl.storage.checkpoints import Checkpoints

Incident = tuple[int, int, str]
"""(round, client, what happened)"""


def keep(saved: Checkpoints, server: Server, guard: Guard, incidents: tuple[Incident, ...]) -> None:
    """Write what the next round needs."""
    state, history = pack(server)
    notes = {"incidents": np.array(json.dumps(incidents)), "guard": tuple(map(np.asarray, guard))}
    saved.save(server.round, state, {**history, **notes})


def restore(saved: Checkpoints, rounds: int, fresh: Any) -> tuple[Server, Guard, tuple[Incident, ...]]:
    """The run as the newest checkpoint has it; ``fresh`` where there is none."""
    server, guard, _ = fresh
    state, history = pack(server)
    notes = {"incidents": np.array(""), "guard": tuple(map(np.asarray, guard))}
    found = saved.newest(state, {**history, **notes})
    if found is None:
        return fresh
    if found.round > rounds:
        raise checks.InputError(f"{saved.folder} holds round {found.round}, asked for {rounds} rounds")
    old = found.history
    incidents = tuple((int(r), int(c), str(what)) for r, c, what in json.loads(str(old["incidents"])))
    first, high = old["guard"]
    return unpack(found.round, found.state, old), Guard(float(first), int(high)), incidents
