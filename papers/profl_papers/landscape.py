"""The decoupled-risk landscape: the picture that explains the stable point, the optimum, and the way to each.

DPR(deployed; theta) over the model that was deployed (the data parameter) and the model that is judged on what came in,
for problems with one parameter; with two, along the line through the optimum and the stable point, with trajectories
projected onto it. Retraining goes down its column; the performative gradient goes down the diagonal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks
from profl.cases import housing, pricing
from profl.methods import pfl, profl
from profl.methods.method import Method
from profl.problem import oracle
from profl.problem.problem import Problem
from profl.run.compiled.simulate import simulate

POINTS = 61
"""Of the grid, per side: finer than the eye asks of contours, and still a small file."""
STEPS = 60
"""Of a trajectory, closer together where it begins, because it slows down."""
DIGITS = 5
"""Significant digits of what is drawn."""
RATE, ROUNDS = 0.02, 400
"""Of the report's pictures: in as many deployments both methods arrive."""


def landscape(
    problem: Problem,
    algorithms: Sequence[tuple[str, Method]],
    *,
    rounds: int = 200,
    samples: int = 500,
    seed: int = 0,
    around: float = 0.25,
) -> dict[str, Any]:
    """A panel of kind "landscape"; ``around`` is the room beyond what the points and trajectories cover.

    The trajectory of a run is drawn through (theta_t, theta_t+1): the model deployed, and what was made of its data.
    """
    axis = coordinate(problem)
    lines: list[dict[str, Any]] = []
    for label, algorithm in algorithms:
        run = simulate(problem, algorithm, rounds=rounds, local_steps=1, samples=samples, seeds=[seed], progress=False)
        path = axis.project(np.asarray(run.theta)[0])
        kept = np.unique(np.geomspace(1, path.size - 1, STEPS).round().astype(int)) - 1
        ends = {"data": _round(path[kept]), "model": _round(path[kept + 1])}
        lines.append({"label": label, "method": algorithm.name, **ends})
    known = [axis.project(point[None])[0] for point in (problem.optimum, problem.stable)]
    covered = np.concatenate([known, *[np.array(line["data"] + line["model"]) for line in lines]])
    room = around * np.ptp(covered)
    at = np.linspace(covered.min() - room, covered.max() + room, POINTS)
    return {
        "kind": "landscape",
        "title": problem.name if axis.size == 1 else f"{problem.name}, along the line through PO and PS",
        "x": "deployed model (decides the data)",
        "y": "model judged on those data",
        "at": _round(at),
        "risk": [_round(row) for row in risks(problem, axis.models(at))],
        "lines": lines,
        "points": [{"label": label, "value": float(v)} for label, v in zip(("PO", "PS"), known, strict=True)],
    }


class coordinate:
    """One number for a model: itself if it has one parameter; with two, its place on the line through PO and PS."""

    def __init__(self, problem: Problem) -> None:
        best, stable = (np.atleast_1d(np.asarray(point)) for point in (problem.optimum, problem.stable))
        if best.ndim != 1 or best.size > 2:
            raise checks.InputError(f"a landscape needs a model of one or two numbers, got shape {best.shape}")
        self.size = best.size
        self.origin = np.zeros(1) if self.size == 1 else best
        along = np.ones(1) if self.size == 1 else stable - best
        if not np.linalg.norm(along) > 0:
            raise checks.InputError("the optimum and the stable point are the same: there is no line through them")
        self.direction = along / np.linalg.norm(along)

    def project(self, models: np.ndarray) -> np.ndarray:
        return (models.reshape(-1, self.size) - self.origin) @ self.direction

    def models(self, at: np.ndarray) -> np.ndarray:
        return self.origin + at[:, None] * self.direction


def risks(problem: Problem, models: np.ndarray) -> np.ndarray:
    """DPR(models[j]; models[i]) in row i and column j."""
    with jax.enable_x64(True):
        world = jax.tree.map(jnp.asarray, (problem.clients, problem.weights))
        points = jnp.asarray(models, jnp.float64)

        def one(deployed: Any, theta: Any) -> Any:
            return oracle.decoupled_risk((problem.reaction, *world), deployed, theta)

        return np.asarray(jax.jit(jax.vmap(jax.vmap(one, (0, None)), (None, 0)))(points, points))


def standard(seed: int = 0) -> list[dict[str, Any]]:
    """The two pictures of the report: one parameter (housing) and two (pricing)."""
    methods = [("PFL", pfl(RATE)), ("ProFL", profl(RATE))]
    return [landscape(case, methods, rounds=ROUNDS, seed=seed) for case in (housing(), pricing(goods=2))]


def _round(values: np.ndarray) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values]
