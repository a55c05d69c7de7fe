"""The samples that Algorithm 2 keeps, from all gradients of a batch at once (paper, Algorithm 1, lines 7 and 11)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp

from profl.parts.filters.paper import PaperFilter
from profl.parts.part import Part, Step, plain
from profl.parts.trusted_samples import gradients
from profl.problem.problem import View
from profl.stages import stage
from profl.typing import Key


@dataclass(frozen=True)
class RobustGradient(Part):
    """Keeps the samples with tau_j < phi (Algorithm 2); ``TrustedSamples`` filters every group by itself.

    Where the algorithm keeps nothing there is no gradient to go on with. The set before that cut is used then, and
    ``run.info["emptied"]`` says in what share of the steps that was so.
    """

    filter: PaperFilter = field(default_factory=PaperFilter)

    info = ("kept", "emptied")
    rereads = True

    def settings(self) -> dict[str, Any]:
        return {"filter": plain(self.filter)}

    def update(self, view: View, state: Any, step: Step, key: Key) -> tuple[Step, Any]:
        with stage("filter") as watch:
            points = gradients(view, step.deployed, step.batch, step.weights)
            weights, emptied = watch(self.filter.run(points, step.weights))
        kept = jnp.sum(weights)
        info = {**step.info, "kept": kept, "emptied": emptied.astype(kept.dtype)}
        return step._replace(weights=weights / kept, info=info), state
