"""The Jacobian df/dsignal in a step: estimated from the deployments (paper, line 13), or stated by the problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from profl import checks, random, trees
from profl.parts.jacobian.estimator import JacobianEstimator
from profl.parts.jacobian.tracking import Tracking
from profl.parts.part import Part, Step, shape_of_f
from profl.parts.units import large
from profl.problem.problem import Problem, View
from profl.stages import stage
from profl.typing import Array, Batch, Key, Theta

TRACKING = Tracking()
LARGEST_SIGNAL = 2048  # numbers in a signal whose Jacobian is estimated: none could be learned from so few deployments
LARGEST_MEMORY = 2**30  # bytes that the estimators of all clients may keep


class JacobianState(NamedTuple):
    estimator: Any
    f_unit: Any  # (p,): natural units that the estimator works in; () where it works in the problem's own
    signal_unit: Any  # (s,)


@dataclass(frozen=True)
class EstimatedJacobian(Part):
    """J and its error by ``jacobian``, an estimator of ``profl.parts.jacobian``."""

    jacobian: JacobianEstimator = TRACKING

    serves = ("jacobian",)

    def reads(self, problem: Any) -> tuple[str, ...]:
        return ("f", "units") if self.jacobian.measured else ("f",)

    def init(self, view: View, theta: Theta, batch: Batch) -> JacobianState:
        signal, f = jax.eval_shape(view.signal, theta), shape_of_f(view, batch)
        units: tuple[Any, Any] = ((), ())
        if self.jacobian.measured:
            units = jnp.ones(f.shape, f.dtype), jnp.ones(signal.shape, signal.dtype)
        return JacobianState(self.jacobian.init(signal, f), *units)

    def update(self, view: View, state: JacobianState, step: Step, key: Key) -> tuple[Step, JacobianState]:
        with stage("Jacobian") as watch:
            signal, at = view.signal(step.deployed), view.signal(step.theta)
            f, variance, own = step.f, step.f_variance, state.estimator
            if step.units is not None:
                own = trees.where(step.units.changed, self.jacobian.init(signal, f), own)
            if self.jacobian.measured:
                ruler, f_ruler = step.units.measures.signal, step.units.measures.f
                signal, at = ruler.measure(signal), ruler.measure(at)
                f, variance = f_ruler.measure(f), variance / f_ruler.unit**2
                state = state._replace(f_unit=f_ruler.unit, signal_unit=ruler.unit)
            state = watch(state._replace(estimator=self.jacobian.update(own, signal, f, variance, at)))
            jacobian, error = self.estimate(state)
        hold = self.jacobian.hold(state.estimator)
        return step._replace(jacobian=jacobian, jacobian_error=error, hold=hold), state

    def estimate(self, state: JacobianState) -> tuple[Array, Array]:
        """J and its squared error in the problem's own units, (p, s) each."""
        jacobian, error = self.jacobian.estimate(state.estimator), self.jacobian.error(state.estimator)
        if not self.jacobian.measured:
            return jacobian, error
        ratio = state.f_unit[:, None] / state.signal_unit
        return ratio * jacobian, ratio**2 * error

    def figures(self, view: View, state: JacobianState, theta: Theta) -> dict[str, Array]:
        """Mean square of an entry of J and of its error, as the client states it and as it is, where that is known."""
        jacobian, error = self.estimate(state)
        figures = {"jacobian_error": jnp.mean(error), "jacobian_size": jnp.mean(jacobian**2)}
        figures |= self.jacobian.figures(state.estimator)
        if "trend" in figures:  # in units of f
            figures["trend"] = jnp.mean(figures["trend"] * state.f_unit)
        return figures | exact_error(view, theta, jacobian)

    def check(self, problem: Problem, parts: Sequence[Part], clients: int) -> None:
        """Before any work: what an estimator keeps of a client grows with the square of the signal."""
        theta = jax.eval_shape(problem.initial, random.seed_key(0))
        signal = jax.eval_shape(lambda t: trees.cast(problem.signal(t)), theta)
        state = jax.eval_shape(lambda: self.jacobian.init(signal, jnp.zeros(1)))  # of one entry of f
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
    """df/dtheta as the problem itself states it: for finding out what the estimating costs."""

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
    if view.jacobian is None or large(theta):  # the exact one is as large as f times the model
        return {}
    to_theta = jax.vmap(lambda row: trees.ravel(jax.vjp(view.signal, theta)[1](row)[0]))
    return {"jacobian_off": jnp.mean((to_theta(jacobian) - view.jacobian(theta)) ** 2)}
