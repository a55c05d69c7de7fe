"""What ``ask`` returns: a model that a client should deploy, and why."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from profl.storage.atomic import atomic
from profl.typing import Theta

PURPOSES = {
    "explore": "a perturbed model, to learn how the data react",
    "improve": "the client's newest model",
    "hold": "the same model as last time",
}


class Deployment(NamedTuple):
    """A model to deploy; its data are told under its ``id``."""

    id: int
    client: str
    theta: Theta  # a pytree of numpy arrays, as the problem has it
    table: dict[str, float]  # the same numbers by name
    purpose: str  # one of ``PURPOSES``
    samples: int  # about so many rows are wanted
    round: int  # from 1 on
    step: int  # of the round, from 1 on
    since: datetime
    until: datetime | None  # when its data are due

    def __str__(self) -> str:
        numbers = ", ".join(f"{name} {value:.6g}" for name, value in self.table.items())
        return f"deployment {self.id}, {self.client}: {numbers} ({self.purpose})"


class Deployments(tuple[Deployment, ...]):
    """The open deployments, in the order in which they were asked for."""

    __slots__ = ()

    def frame(self) -> Any:
        """One row per deployment, with a column for each number of the model."""
        import pandas

        rows = [
            {"deployment": one.id, "client": one.client, "purpose": one.purpose, "until": one.until, **one.table}
            for one in self
        ]
        return pandas.DataFrame(rows, columns=None if rows else ["deployment", "client", "purpose", "until"])

    def to_csv(self, path: str | Path) -> None:
        """Write ``frame`` to a file, whole or not at all."""
        with atomic(path) as temporary:
            self.frame().to_csv(temporary, index=False)


def purpose(model: Theta, newest: Theta, last: Theta | None) -> str:
    """Why a model is deployed: one of ``deployment.PURPOSES``.

    >>> purpose(np.ones(2), np.ones(2), np.zeros(2)), purpose(np.ones(2), np.zeros(2), None)
    ('improve', 'explore')
    """
    if not _close(model, newest):
        return "explore"
    return "hold" if last is not None and _close(model, last) else "improve"


def _close(one: Theta, other: Theta) -> bool:
    """Whether two models are equal up to rounding."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-7) for a, b in pairs)
