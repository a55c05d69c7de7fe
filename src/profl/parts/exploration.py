"""Exploration: the deployed model is theta plus a small perturbation, so that J can be estimated also when theta rests.

Not in the paper.

    deployed = Proj(theta + delta),   delta = scale * unit * (settle / (settle + t))^fade * signs

delta moves the signal; t counts the deployments of this client. unit is the signal's natural unit
(``profl.parts.units``), which the first batch shows: the first deployment is theta itself. Cost and benefit both grow
with the sum of delta^2: deployed regret is half the risk's curvature times its mean, the error of J is the sampling
noise over its root.

* Antithetic: a client deploys theta + delta, and at its next step theta' - delta. The batch's gradient is taken at the
  deployed model; over a pair the first-order effect of delta on the model cancels.
* t counts the client's own deployments, so a client that was left out for some rounds loses nothing.
* At a bound of the model space a coordinate can move to one side only, and moving inwards costs in the first order.
  That is done only while J is largely unknown (its estimated error relative to its size); later such a coordinate is
  not perturbed.

Where data react to a few numbers made from theta, delta is the direction of theta that moves those numbers, weighted by
the scales of the parameters. For a large model (``profl.parts.units``) a client stores the perturbation of the signal
instead of a second model, and computes the direction of theta again.
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
from profl.parts.units import expand_scales, initial_units, is_large
from profl.problem.problem import View
from profl.stages import stage
from profl.typing import Array, Batch, Key, Theta

DIRECTIONS = ("isotropic", "uncovered")


class ExplorationState(NamedTuple):
    """What the next perturbation needs."""

    delta: Array | Theta  # the last perturbation, of theta; of the signal, (s,), where the model is large
    opposite_next: Array  # () bool: whether its opposite comes next
    deployments_left: Array  # () int32: for which it is still held
    perturbations: Array  # () how many so far, fractions where they are held for several deployments
    units_known: Array  # () bool: from the first batch on
    scales: Array  # natural units of the parameters, (d,), or (arrays,) of a large model
    signal_scale: Array  # natural units of the signal, (s,)
    unknown_share: Array  # () the error's share in the squared size of J
    column_error: Any  # (s,): the mean squared error of the columns of J, in natural units; () where nobody asks for it
    hold: Array  # () int32: for how many deployments the next one is to be held


@dataclass(frozen=True)
class Exploration(Part):
    """Perturbs the deployed model; not in the paper.

    Args:
      scale: size of the first perturbations, in natural units of the signal.
      fade: they shrink with this power of the number of deployments; 0 never fades.
      settle: after how many deployments the fading sets in.
      directions: "isotropic" (random signs), or "uncovered" (larger where J's estimated error is larger).
      inward: while more than this share of J's square is error, coordinates at a bound of the model space move inwards.

    >>> Exploration(scale=-1.0)
    Traceback (most recent call last):
        ...
    profl.checks.InputError: scale must be a finite number above 0, got -1.0
    """

    # Figures: tail excess (deployed regret) of PoFL on pricing, linear / exponential demand, 120 rounds of R = 5,
    # n = 500, 3 seeds; 0.0011 (0.33) / 0.014 (0.25) as it is. One is traded for the other.
    scale: float = 0.1
    fade: float = 0.3  # 0 costs more the longer a run is; with 0.6 J can no longer be estimated
    settle: float = 20.0
    directions: str = "isotropic"
    inward: float = 0.3  # on pricing 1.0, which is never, ends the same

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

    def init(self, view: View, theta: Theta, batch: Batch) -> ExplorationState:
        signal, f = jax.eval_shape(view.signal, theta), shape_of_f(view, batch)
        like = signal if is_large(theta) else theta
        units = initial_units(theta, signal, f)
        return ExplorationState(
            delta=jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like),
            opposite_next=jnp.zeros((), bool),
            deployments_left=jnp.int32(0),
            perturbations=jnp.zeros(()),
            units_known=units.known,
            scales=units.scales,
            signal_scale=units.signal.scale,
            unknown_share=jnp.zeros((), f.dtype),
            column_error=jnp.zeros(signal.shape, f.dtype) if self.directions == "uncovered" else (),
            hold=jnp.int32(1),
        )

    def deploy(self, view: View, state: ExplorationState, key: Key, theta: Theta) -> tuple[Theta, ExplorationState]:
        """The perturbed model, and the state that remembers the perturbation."""
        with stage("explore") as watch:
            return watch(self._deploy(view, state, key, theta))

    def _deploy(self, view: View, state: ExplorationState, key: Key, theta: Theta) -> tuple[Theta, ExplorationState]:
        move = self._signal_move(key, state)
        held = state.deployments_left > 0

        def choose(new: Array, old: Array) -> Array:
            return jnp.where(held, old, jnp.where(state.opposite_next, -old, new))

        if is_large(theta):
            stored = choose(move, state.delta)
            delta = self._theta_move(view, theta, stored, state)
        else:
            stored = delta = jax.tree.map(choose, self._theta_move(view, theta, move, state), state.delta)
        deployed = view.project(jax.tree.map(jnp.add, theta, delta))
        opposite_next = jnp.where(held, state.opposite_next, state.units_known & ~state.opposite_next)
        left = jnp.where(held, state.deployments_left, jnp.where(state.units_known, state.hold, 1)) - 1
        return deployed, state._replace(
            delta=stored,
            opposite_next=opposite_next,
            deployments_left=left,
            perturbations=state.perturbations + 1 / state.hold,
        )

    def update(self, view: View, state: ExplorationState, step: Step, key: Key) -> tuple[Step, ExplorationState]:
        """The step unchanged, and the state with the units and the error of J in this step."""
        units, _, ratio = step.units
        jacobian, error = units.to_natural_units(step.jacobian, step.jacobian_error)
        delta = state.delta  # that of a large model is computed again, in the new units
        if not is_large(step.deployed):
            delta = jax.tree.map(jnp.multiply, state.delta, expand_scales(ratio, step.deployed))
        return step, state._replace(
            delta=delta,
            units_known=units.known,
            scales=units.scales,
            signal_scale=units.signal.scale,
            unknown_share=jnp.sum(error) / (jnp.sum(jacobian**2 + error) + jnp.finfo(error.dtype).tiny),
            column_error=jnp.mean(error, 0) if self.directions == "uncovered" else (),
            hold=jnp.asarray(step.hold, jnp.int32),
        )

    def _signal_move(self, key: Key, state: ExplorationState) -> Array:
        """The wanted move of the signal over the square of its unit, (s,)."""
        size = self.scale * (self.settle / (self.settle + state.perturbations)) ** self.fade
        signs = random.explore_signs(key, state.signal_scale.shape[0]).astype(state.signal_scale.dtype)
        if self.directions == "uncovered":
            share = state.column_error
            signs = signs * jnp.sqrt(share / (jnp.mean(share) + jnp.finfo(share.dtype).tiny))
        return size * signs / state.signal_scale

    def _theta_move(self, view: View, theta: Theta, move: Array, state: ExplorationState) -> Theta:
        """The move of theta that moves the signal by ``move`` (s,)."""
        (direction,) = jax.vjp(view.signal, theta)[1](move)
        scales = expand_scales(state.scales, theta)
        delta = jax.tree.map(lambda unit, part: (unit**2 * part).astype(part.dtype), scales, direction)
        return jax.tree.map(
            lambda a, b: jnp.where(state.unknown_share > self.inward, a, b), delta, two_sided_move(view, theta, delta)
        )


def two_sided_move(problem: View, theta: Theta, delta: Theta) -> Theta:
    """``delta``, in every coordinate no larger than the model space allows in both directions."""
    up = jax.tree.map(jnp.subtract, problem.project(jax.tree.map(jnp.add, theta, delta)), theta)
    down = jax.tree.map(jnp.subtract, theta, problem.project(jax.tree.map(jnp.subtract, theta, delta)))
    return jax.tree.map(lambda a, b: jnp.where(jnp.abs(a) < jnp.abs(b), a, b), up, down)
