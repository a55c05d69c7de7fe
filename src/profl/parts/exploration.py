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

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from profl import checks, random
from profl.parts.units import Measures, large, spread_over
from profl.problem.problem import View
from profl.typing import Array, Key, Theta

DIRECTIONS = ("isotropic", "uncovered")


class Explored(NamedTuple):
    """What the next step needs: the last perturbation, and whether its opposite is due."""

    delta: Array | Theta  # of theta; of the signal, (s,), where the model is large
    due: Array  # () bool
    left: Array  # () int32: deployments for which it is still held
    made: Array  # () deployments so far, each a part of one where perturbations are held

    def shrunk(self, ratio: Array, theta: Theta) -> Explored:
        """The last perturbation as it would be with scales that are so many times as large."""
        if large(theta):
            return self  # it is looked for anew
        return self._replace(delta=jax.tree.map(jnp.multiply, self.delta, spread_over(ratio, theta)))


@dataclass(frozen=True)
class Exploration:
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

    measured = True  # works in natural units: ``explore`` is given the client's measures
    holds = True  # holds what is added for as long as the estimator says

    def init(self, theta: Theta, signal: Array | None = None) -> Explored:
        """Before the first deployment; ``signal`` gives shape and type, of a large model."""
        kept = signal if large(theta) else theta
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), kept)
        return Explored(zeros, jnp.zeros((), bool), jnp.int32(0), jnp.zeros(()))

    def explore(
        self,
        problem: View,
        key: Key,
        state: Explored,
        theta: Theta,
        jacobian: Array,
        error: Array,
        measures: Measures,
        hold: Array | int = 1,
    ) -> tuple[Theta, Explored]:
        """What to deploy in place of ``theta``; ``jacobian`` and its squared ``error`` are (p, size of signal).

        What is added is held for ``hold`` deployments.
        """
        jacobian, error = measures.inside(jacobian, error)
        move = self._move(key, state.made, error, measures)
        held = state.left > 0

        def choose(new: Array, old: Array) -> Array:
            return jnp.where(held, old, jnp.where(state.due, -old, new))

        ignorance = jnp.sum(error) / (jnp.sum(jacobian**2 + error) + jnp.finfo(error.dtype).tiny)
        if large(theta):
            kept = choose(move, state.delta)
            delta = self._of_theta(problem, theta, kept, ignorance, measures)
        else:
            kept = delta = jax.tree.map(choose, self._of_theta(problem, theta, move, ignorance, measures), state.delta)
        deployed = problem.project(jax.tree.map(jnp.add, theta, delta))
        due = jnp.where(held, state.due, measures.known & ~state.due)
        left = jnp.where(held, state.left, jnp.where(measures.known, hold, 1)) - 1
        return deployed, Explored(kept, due, left, state.made + 1 / hold)

    def _move(self, key: Key, count: Array, error: Array, measures: Measures) -> Array:
        """By what the signal is to be moved, over the square of its unit, (s,)."""
        unit = measures.signal.unit
        size = self.scale * (self.settle / (self.settle + count)) ** self.fade
        signs = random.signs(random.explore_key(key), unit.shape[0]).astype(unit.dtype)
        if self.directions == "uncovered":
            share = jnp.mean(error, 0)
            signs = signs * jnp.sqrt(share / (jnp.mean(share) + jnp.finfo(error.dtype).tiny))
        return size * signs / unit

    def _of_theta(self, problem: View, theta: Theta, move: Array, ignorance: Array, measures: Measures) -> Theta:
        """The direction of theta that moves the signal so."""
        (direction,) = jax.vjp(problem.signal, theta)[1](move)
        scales = spread_over(measures.scales, theta)
        delta = jax.tree.map(lambda unit, part: (unit**2 * part).astype(part.dtype), scales, direction)
        return jax.tree.map(
            lambda a, b: jnp.where(ignorance > self.inward, a, b), delta, with_room(problem, theta, delta)
        )


def with_room(problem: View, theta: Theta, delta: Theta) -> Theta:
    """``delta``, in every coordinate no larger than the model space allows in both directions."""
    up = jax.tree.map(jnp.subtract, problem.project(jax.tree.map(jnp.add, theta, delta)), theta)
    down = jax.tree.map(jnp.subtract, theta, problem.project(jax.tree.map(jnp.subtract, theta, delta)))
    return jax.tree.map(lambda a, b: jnp.where(jnp.abs(a) < jnp.abs(b), a, b), up, down)
