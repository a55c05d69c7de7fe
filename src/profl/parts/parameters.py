"""The parameters f of the data's distribution, estimated from a batch (paper, Algorithm 1, lines 8 and 12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from profl.parts.part import Part, Step
from profl.problem.problem import Problem, View
from profl.stages import stage
from profl.typing import Key


@dataclass(frozen=True)
class EstimatedParameters(Part):
    """f_hat (p,) and the variance of its sampling noise, by the problem's family; Algorithm 1, lines 8 and 12."""

    serves = ("f",)

    def needs(self, problem: Problem | View | None) -> tuple[str, ...]:
        return ("family",)

    def update(self, view: View, state: Any, step: Step, key: Key) -> tuple[Step, Any]:
        with stage("estimate f") as watch:
            f = watch(view.family.estimate(step.batch, step.weights))
        return step._replace(f=f, f_variance=view.family.variance(step.batch, step.weights, f)), state
