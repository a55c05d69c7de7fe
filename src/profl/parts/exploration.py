"""Exploration: what is deployed is the model plus a small perturbation, so that J stays visible when a run rests.

    deployed = Proj(theta + delta),   delta = scale * unit * (settle / (settle + t))^fade * signs

(a move of the signal, after t deployments of this client). unit is the signal's natural one (``profl.parts.units``),
which the first batch shows: the first deployment is theta itself. Cost and use both grow with the sum of delta^2:
deployed regret is half the risk's curvature times the mean of it, the error of J is the sampling noise over its root.

* Antithetic: a client deploys theta + delta, and at its next step theta' - delta. The batch's gradient is taken at what
  was deployed; over a pair the first-order effect of delta on the model cancels.
* t counts the client's own deployments, so one that was left out for a while loses nothing.
* At the edge of the model space a coordinate has room on one side only, and moving inwards costs in the first order.
  That is done only while J is largely unknown (its stated error against its size); later such a coordinate is left
  where it is.

Where data react to a few numbers made from theta, delta is the direction of theta that moves those numbers, weighed by
the scales of the parameters. A large model (``profl.parts.units``) is not kept a second time: a client remembers by
what the signal was moved, and looks for the direction of theta anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from profl import checks, random
from profl.parts.jacobian.estimated import EstimatedJacobian
from profl.parts.part import Part, Step, plain, shape_of_f
from profl.parts.units import large, spread_over, unmeasured
from profl.problem.problem import View
from profl.stages import stage
from profl.typing import Array, Batch, Key, Theta

DIRECTIONS = ("isotropic", "uncovered")


class Explored(NamedTuple):
    """What the next perturbation needs."""

    delta: Array | Theta  # the last perturbation, of theta; of the signal, (s,), where the model is large
    opposite_due: Array  # () bool: whether its opposite comes next
    left: Array  # () int32: deployments for which it is still held
    made: Array  # () deployments so far, each a part of one where perturbations are held
    known: Array  # () bool: whether units are known, from the first batch on
    scales: Array  # natural units of the parameters, (d,), or (arrays,) of a large model's
    unit: Array  # natural units of the signal, (s,)
    ignorance: Array  # () the error's share in the squared size of J
    column_error: Array  # (s,): the mean squared error of the columns of J, in natural units
    hold: Array  # () int32: for how many deployments the next one is to be held


@dataclass(frozen=True)
class Exploration(Part):
    """How what is deployed differs from the model.

    Args:
      scale: size of the first perturbations, in natural units of the signal.
      fade: they shrink with this power of the number of deployments; 0 never fades.
      settle: after how many deployments the fading sets in.
      directions: "isotropic" (random signs), or "uncovered" (larger where J's estimated error is larger).
      inward: least ignorance at which a coordinate at the edge of the model space is moved inwards.

    >>> Exploration(scale=-1.0)
    Traceback (most recent call last):
        ...
    profl.checks.InputError: scale must be a finite number above 0, got -1.0
    """

    # Figures: tail excess (deployed regret) of PoFL on pricing, linear / exponential demand, 120 rounds of R = 5,
    # n = 500, 3 seeds; 0.0011 (0.33) / 0.014 (0.25) as it is. One is traded for the other.
    scale: float = 0.1
    fade: float = 0.3  # 0 costs the more, the longer a run is; with 0.6 J fades from sight
    settle: float = 20.0
    directions: str = "isotropic"
    inward: float = 0.3  # of J's square is error: J is largely unknown. On pricing 1.0, which is never, ends the same

    def __post_init__(self) -> None:
        checks.positive("scale", self.scale)
        checks.one_of("directions", self.directions, DIRECTIONS)
        checks.positive("settle", self.settle)
        if checks.real("fade", self.fade) < 0:
            raise checks.InputError(f"fade must be 0 or more, got {self.fade!r}")
        checks.real("inward", self.inward)

    serves = ("jacobian",)

    def settings(self) -> dict[str, Any]:
        return {"explore": plain(self)}

    def reads(self, problem: Any) -> tuple[str, ...]:
        return ("jacobian", "units")

    def check_chain(self, parts: Sequence[Part], pooled: bool) -> None:
        if not any(isinstance(part, EstimatedJacobian) for part in parts):
            raise checks.InputError("explore is for a Jacobian that is estimated: this method estimates none")

    def init(self, view: View, theta: Theta, batch: Batch) -> Explored:
        signal, f = jax.eval_shape(view.signal, theta), shape_of_f(view, batch)
        kept = signal if large(theta) else theta
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), kept)
        measures, nothing = unmeasured(theta, signal, f), jnp.zeros((), f.dtype)
        return Explored(
            delta=zeros,
            opposite_due=jnp.zeros((), bool),
            left=jnp.int32(0),
            made=jnp.zeros(()),
            known=measures.known,
            scales=measures.scales,
            unit=measures.signal.unit,
            ignorance=nothing,
            column_error=jnp.zeros(signal.shape, f.dtype),
            hold=jnp.int32(1),
        )

    def deploy(self, view: View, state: Explored, key: Key, theta: Theta) -> tuple[Theta, Explored]:
        with stage("explore") as watch:
            return watch(self._deploy(view, state, key, theta))

    def _deploy(self, view: View, state: Explored, key: Key, theta: Theta) -> tuple[Theta, Explored]:
        move = self._move(key, state)
        held = state.left > 0

        def choose(new: Array, old: Array) -> Array:
            return jnp.where(held, old, jnp.where(state.opposite_due, -old, new))

        if large(theta):
            kept = choose(move, state.delta)
            delta = self._of_theta(view, theta, kept, state)
        else:
            kept = delta = jax.tree.map(choose, self._of_theta(view, theta, move, state), state.delta)
        deployed = view.project(jax.tree.map(jnp.add, theta, delta))
        due = jnp.where(held, state.opposite_due, state.known & ~state.opposite_due)
        left = jnp.where(held, state.left, jnp.where(state.known, state.hold, 1)) - 1
        return deployed, state._replace(delta=kept, opposite_due=due, left=left, made=state.made + 1 / state.hold)

    def update(self, view: View, state: Explored, step: Step, key: Key) -> tuple[Step, Explored]:
        """The step as it is; the state with what the next perturbation needs of it."""
        measures, _, ratio = step.units
        jacobian, error = measures.inside(step.jacobian, step.jacobian_error)
        delta = state.delta  # that of a large model is looked for anew, in the new units
        if not large(step.deployed):
            delta = jax.tree.map(jnp.multiply, state.delta, spread_over(ratio, step.deployed))
        return step, state._replace(
            delta=delta,
            known=measures.known,
            scales=measures.scales,
            unit=measures.signal.unit,
            ignorance=jnp.sum(error) / (jnp.sum(jacobian**2 + error) + jnp.finfo(error.dtype).tiny),
            column_error=jnp.mean(error, 0),
            hold=jnp.asarray(step.hold, jnp.int32),
        )

    def _move(self, key: Key, state: Explored) -> Array:
        """By what the signal is to be moved, over the square of its unit, (s,)."""
        size = self.scale * (self.settle / (self.settle + state.made)) ** self.fade
        signs = random.signs(random.explore_key(key), state.unit.shape[0]).astype(state.unit.dtype)
        if self.directions == "uncovered":
            share = state.column_error
            signs = signs * jnp.sqrt(share / (jnp.mean(share) + jnp.finfo(share.dtype).tiny))
        return size * signs / state.unit

    def _of_theta(self, view: View, theta: Theta, move: Array, state: Explored) -> Theta:
        """The direction of theta that moves the signal so."""
        (direction,) = jax.vjp(view.signal, theta)[1](move)
        scales = spread_over(state.scales, theta)
        delta = jax.tree.map(lambda unit, part: (unit**2 * part).astype(part.dtype), scales, direction)
        return jax.tree.map(
            lambda a, b: jnp.where(state.ignorance > self.inward, a, b), delta, with_room(view, theta, delta)
        )


def with_room(problem: View, theta: Theta, delta: Theta) -> Theta:
    """``delta``, in every coordinate no larger than the model space allows in both directions."""
    up = jax.tree.map(jnp.subtract, problem.project(jax.tree.map(jnp.add, theta, delta)), theta)
    down = jax.tree.map(jnp.subtract, theta, problem.project(jax.tree.map(jnp.subtract, theta, delta)))
    return jax.tree.map(lambda a, b: jnp.where(jnp.abs(a) < jnp.abs(b), a, b), up, down)
