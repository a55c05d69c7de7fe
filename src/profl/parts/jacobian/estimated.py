"""The Jacobian df/dsignal in a step: estimated from the deployments (paper, line 13), or stated by the problem.

Where nobody chooses an estimator, one Kalman filter does in simulation. Where people are real it is ``Tracking``,
twelve of them: a memory or a drift that goes unnoticed costs more there than time does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from profl import checks, random, trees
from profl.parts.jacobian.estimator import JacobianEstimator
from profl.parts.jacobian.kalman import Kalman
from profl.parts.jacobian.tracking import Tracking
from profl.parts.part import Part, Step, plain, shape_of_f
from profl.parts.units import is_large
from profl.problem.problem import Problem, View
from profl.stages import stage
from profl.typing import Array, Batch, Key, Theta

KALMAN, TRACKING = Kalman(), Tracking()
LARGEST_SIGNAL = 2048  # entries of a signal whose Jacobian is estimated; more cannot be learned in any run
LARGEST_MEMORY = 2**30  # bytes that the estimators of all clients together may take


class JacobianState(NamedTuple):
    """The state of an estimator, and the units that it works in."""

    estimator: Any
    f_scale: Any  # (p,): natural units that the estimator works in; () where it works in the problem's own
    signal_scale: Any  # (s,)


@dataclass(frozen=True)
class EstimatedJacobian(Part):
    """J and its squared error by the estimator ``jacobian`` (paper, Algorithm 1, line 13); None for the default one."""

    jacobian: JacobianEstimator | None = None

    serves = ("jacobian",)

    def __post_init__(self) -> None:
        if self.jacobian is not None and not isinstance(self.jacobian, JacobianEstimator):
            raise checks.InputError(
                f"jacobian must be a profl.parts.JacobianEstimator such as Kalman(), got {checks.shown(self.jacobian)}"
            )

    def estimator(self, problem: Problem | View | None) -> JacobianEstimator:
        """The estimator for a problem."""
        if self.jacobian is not None:
            return self.jacobian
        return TRACKING if problem is not None and problem.live else KALMAN

    def settings(self) -> dict[str, Any]:
        return {"jacobian": "auto" if self.jacobian is None else plain(self.jacobian)}

    def reads(self, problem: Any) -> tuple[str, ...]:
        return ("f", "units") if self.estimator(problem).natural_units else ("f",)

    def init(self, view: View, theta: Theta, batch: Batch) -> JacobianState:
        estimator, signal, f = self.estimator(view), jax.eval_shape(view.signal, theta), shape_of_f(view, batch)
        units: tuple[Any, Any] = ((), ())
        if estimator.natural_units:
            units = jnp.ones(f.shape, f.dtype), jnp.ones(signal.shape, signal.dtype)
        return JacobianState(estimator.init(signal, f), *units)

    def update(self, view: View, state: JacobianState, step: Step, key: Key) -> tuple[Step, JacobianState]:
        estimator = self.estimator(view)
        with stage("Jacobian") as watch:
            signal, at = view.signal(step.deployed), view.signal(step.theta)
            f, variance, own = step.f, step.f_variance, state.estimator
            if step.units is not None:
                own = estimator.restart(own, step.units.changed, signal, f)
            if estimator.natural_units:
                signal_unit, f_unit = step.units.units.signal, step.units.units.f
                signal, at = signal_unit.standardise(signal), signal_unit.standardise(at)
                f, variance = f_unit.standardise(f), variance / f_unit.scale**2
                state = state._replace(f_scale=f_unit.scale, signal_scale=signal_unit.scale)
            state = watch(state._replace(estimator=estimator.update(own, signal, f, variance, at)))
            jacobian, error = self.estimate(view, state)
        hold = estimator.hold(state.estimator)
        return step._replace(jacobian=jacobian, jacobian_error=error, hold=hold), state

    def estimate(self, view: View, state: JacobianState) -> tuple[Array, Array]:
        """J and its squared error in the problem's own units, (p, s) each."""
        estimator = self.estimator(view)
        jacobian, error = estimator.estimate(state.estimator), estimator.error(state.estimator)
        if not estimator.natural_units:
            return jacobian, error
        ratio = state.f_scale[:, None] / state.signal_scale
        return ratio * jacobian, ratio**2 * error

    def figures(self, view: View, state: JacobianState, theta: Theta) -> dict[str, Array]:
        """Mean squares of J's entries and of their stated error, and the true error where J is known exactly."""
        jacobian, error = self.estimate(view, state)
        figures = {"jacobian_error": jnp.mean(error), "jacobian_size": jnp.mean(jacobian**2)}
        figures |= self.estimator(view).figures(state.estimator)
        if "trend" in figures:  # in units of f
            figures["trend"] = jnp.mean(figures["trend"] * state.f_scale)
        return figures | exact_error(view, theta, jacobian)

    def check(self, problem: Problem, parts: Sequence[Part], clients: int) -> None:
        """Refuse a signal that is too large: the state of an estimator grows with the square of it."""
        theta = jax.eval_shape(problem.initial, random.seed_key(0))
        signal = jax.eval_shape(lambda t: trees.cast(problem.signal(t)), theta)
        state = jax.eval_shape(lambda: self.estimator(problem).init(signal, jnp.zeros(1)))  # of one entry of f
        size = clients * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
        if size > LARGEST_MEMORY or signal.size > LARGEST_SIGNAL:
            raise checks.InputError(
                f"the data of {problem.name!r} may react to {signal.size} numbers, too many for df/dsignal to be "
                f"estimated (at most {LARGEST_SIGNAL}, and {LARGEST_MEMORY // 2**20} MiB for all clients; this takes "
                f"{size // 2**20} MiB): give Problem a signal of a few numbers, such as the mean score of each group, "
                "or use jacobian='exact' where the problem states f(theta), or profl.pfl, which needs none"
            )


@dataclass(frozen=True)
class ExactJacobian(Part):
    """df/dtheta as the problem states it, to see what estimating it costs; not in the paper."""

    serves = ("jacobian",)

    def needs(self, problem: Any) -> tuple[str, ...]:
        return ("exact map",)

    def settings(self) -> dict[str, Any]:
        return {"jacobian": "exact"}

    def update(self, view: View, state: Any, step: Step, key: Key) -> tuple[Step, Any]:
        assert view.jacobian is not None
        with stage("Jacobian") as watch:
            jacobian = watch(view.jacobian(step.deployed))
        return step._replace(jacobian=jacobian, signal=trees.ravel), state  # it stands in theta, not in a signal


def exact_error(view: View, theta: Theta, jacobian: Array) -> dict[str, Array]:
    """{"jacobian_off": mean squared error of J's entries, brought to theta}; {} where the exact one is not known."""
    if view.jacobian is None or is_large(theta):  # the exact one is as large as f times the model
        return {}
    to_theta = jax.vmap(lambda row: trees.ravel(jax.vjp(view.signal, theta)[1](row)[0]))
    return {"jacobian_off": jnp.mean((to_theta(jacobian) - view.jacobian(theta)) ** 2)}
