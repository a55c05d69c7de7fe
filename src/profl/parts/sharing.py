"""Jacobians shared among clients that react alike (paper, Algorithm 1, lines 18-20), once a round.

A client uses J = shared + (its own now - its own when the mail came). Without the second term it would use what it
knew a round ago: on housing that alone is 1.13 times the excess.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks, trees
from profl.parts.jacobian.estimated import EstimatedJacobian, exact_error
from profl.parts.part import Exchange, Part, Step, plain, shape_of_f
from profl.problem.problem import Problem, View
from profl.server import entries
from profl.server.entries import Report, Values
from profl.server.sharing import Sharing
from profl.typing import Array, Batch, Key, Theta


class JacobianMail(NamedTuple):
    """The Jacobian that the server sent to a client."""

    jacobian: Array  # (p, s)
    ready: Array  # () bool: whether there is one yet
    group: Array  # () int32: the cluster it comes from, -1 for none


class SharingState(NamedTuple):
    """The shared and the own Jacobian of a client."""

    shared: JacobianMail
    own_at_mail: Array  # the client's own estimate when that came, (p, s)
    own: Array  # its own estimate now, (p, s)
    error: Array  # the squared error of that, (p, s)


class Jacobians(NamedTuple):
    """The Jacobians of each client at the end of a run."""

    own: np.ndarray  # the client's own estimate
    shared: np.ndarray  # the one that the server sent
    groups: np.ndarray  # the cluster it was in, -1 for none


@dataclass(frozen=True)
class SharedJacobians(Part):
    """Shares Jacobians by ``share``, a ``profl.server.Sharing`` such as ``Clusters``; Algorithm 1, lines 18-20."""

    share: Sharing

    serves = ("jacobian",)

    def __post_init__(self) -> None:
        if not isinstance(self.share, Sharing):
            raise checks.InputError(
                f"share must be a profl.server.sharing.Sharing such as Clusters(), got {self.share!r}"
            )

    def settings(self) -> dict[str, Any]:
        return {"share": plain(self.share)}

    def reads(self, problem: Any) -> tuple[str, ...]:
        return ("jacobian",)

    def check_chain(self, parts: Sequence[Part], pooled: bool) -> None:
        if not any(isinstance(part, EstimatedJacobian) for part in parts):
            raise checks.InputError("share needs a method that estimates Jacobians: with jacobian='exact' none is")

    def check(self, problem: Problem, parts: Sequence[Part], clients: int) -> None:
        self.share.check(problem.count)

    def init(self, view: View, theta: Theta, batch: Batch) -> SharingState:
        signal, f = jax.eval_shape(view.signal, theta), shape_of_f(view, batch)
        nothing = jnp.zeros((f.shape[0], signal.shape[0]), f.dtype)
        return SharingState(JacobianMail(nothing, jnp.asarray(False), jnp.int32(-1)), nothing, nothing, nothing)

    def update(self, view: View, state: SharingState, step: Step, key: Key) -> tuple[Step, SharingState]:
        if step.units is not None:  # a Jacobian shared in other units is void
            unknown = JacobianMail(jnp.zeros_like(state.own), jnp.asarray(False), jnp.int32(-1))
            shared = trees.where(step.units.changed, unknown, state.shared)
            own_at_mail = jnp.where(step.units.changed, 0.0, state.own_at_mail)
            state = state._replace(shared=shared, own_at_mail=own_at_mail)
        state = state._replace(own=step.jacobian, error=step.jacobian_error)
        return step._replace(jacobian=self.gradient_jacobian(state)), state

    def gradient_jacobian(self, state: SharingState) -> Array:
        """The Jacobian that the gradient is computed with, (p, s)."""
        return jnp.where(state.shared.ready, state.shared.jacobian + (state.own - state.own_at_mail), state.own)

    def report(self, view: View, state: SharingState, theta: Theta) -> Report:
        error = state.error if self.share.entrywise else jnp.mean(state.error)
        return {"jacobian": entries.jacobian(state.own), "jacobian_error": entries.jacobian_error(error)}

    def receive(self, view: View, state: SharingState, mail: JacobianMail) -> SharingState:
        grouped = state._replace(shared=state.shared._replace(group=mail.group))
        return trees.where(mail.ready, state._replace(shared=mail, own_at_mail=state.own), grouped)

    def mail_like(self, view: View, state: SharingState) -> JacobianMail:
        return state.shared

    def combine(self, view: View, server: Any, exchange: Exchange) -> tuple[Any, JacobianMail]:
        jacobians, errors = exchange.reports["jacobian"], exchange.reports["jacobian_error"]
        shared, groups = self.share.share(exchange.key, jacobians, exchange.weights, exchange.accepted, errors)
        ready = jnp.broadcast_to(jnp.all(jnp.isfinite(shared)), groups.shape)
        return server, JacobianMail(shared, ready, groups)

    def figures(self, view: View, state: SharingState, theta: Theta) -> dict[str, Array]:
        return exact_error(view, theta, self.gradient_jacobian(state))

    def final(self, view: View, state: SharingState, reports: Values) -> dict[str, Any]:
        shared: Any = state.shared
        return {"jacobians": Jacobians(reports["jacobian"], shared.jacobian, shared.group)}
