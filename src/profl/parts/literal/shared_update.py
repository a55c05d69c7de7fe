"""Lines 14 and 17 to 21 of Algorithm 1 as printed: Jacobians are shared at every local step, models every R steps.

    report J_i       ->  k-means with C clusters, the plain mean of each     ->  J_c
    theta_i <- Proj(theta_i - eta (L1 + J_c^T u))
    report theta_i   ->  after R steps the mean of all                       ->  the next theta

A local step so takes two turns of messages. A round of the engine is one local step here (``local_steps=1``), and the
server's model changes in every R-th of them; in between each client goes on with its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from profl import checks, trees
from profl.parts.gradient import pull_back
from profl.parts.literal.gradient import score_terms
from profl.parts.part import Exchange, Part, Step, shape_of_f
from profl.problem.problem import Problem, View
from profl.server import entries
from profl.server.entries import Report
from profl.server.kmeans import distances, kmeans, random_like
from profl.typing import Array, Batch, Key, Theta


@dataclass(frozen=True)
class ClusterMeans:
    """k-means with a given number of clusters, and the plain mean of each (paper, Algorithm 1, Server Aggregation).

    One seeding by k-means++, as in scikit-learn.

    >>> jacobians = jnp.array([1.0, 1.2, 3.0]).reshape(3, 1, 1)
    >>> ClusterMeans(2)(jax.random.key(0), jacobians, jnp.full(3, True)).ravel().round(1)
    Array([1.1, 1.1, 3. ], dtype=float32)
    """

    count: int

    def __post_init__(self) -> None:
        checks.positive_int("clusters", self.count)

    def __call__(self, key: Key, jacobians: Array, used: Array) -> Array:
        """What each client gets, (k, p, s), from the rows that are ``used`` (k,)."""
        rows, slots = jacobians.reshape(len(jacobians), -1), self.count
        weights = used / jnp.maximum(jnp.sum(used), 1.0)
        rows = jnp.where(used[:, None], rows, 0.0)
        centres, _ = kmeans(random_like(rows, jax.random.uniform, key, (1, slots)), rows, weights, slots)
        nearest = jnp.argmin(distances(rows, centres, slots), 1)
        member = weights[:, None] * (nearest[:, None] == jnp.arange(slots))
        means = member.T @ rows / jnp.maximum(jnp.sum(member, 0), jnp.finfo(rows.dtype).tiny)[:, None]
        return means[nearest].reshape(jacobians.shape)


class LocalModel(NamedTuple):
    """What a client keeps between two local steps."""

    theta: Theta  # its own model
    is_new: Array  # () bool: whether the next step starts from the server's model
    first: Theta  # L1 at its own model
    f_gradient: Array  # u there, (p,)
    jacobian: Array  # its own J, (p, s)


class SharedMail(NamedTuple):
    """What a client gets in one turn."""

    jacobian: Array  # J_c, (p, s)
    turn: Array  # () int32: 0 brings a Jacobian, 1 may bring a new model
    averaged: Array  # () bool: whether the models were averaged


class Clock(NamedTuple):
    """The server's state."""

    turn: Array
    steps: Array  # local steps so far
    averaged: Array  # () bool: whether the last turn averaged the models


@dataclass(frozen=True)
class SharedUpdate(Part):
    """The step along L1 + J_c^T u, and the mean of the models every ``local_steps`` steps."""

    learning_rate: float = 0.01
    clusters: int = 1
    local_steps: int = 1

    arguments = ("learning_rate",)
    exchanges = 1

    def __post_init__(self) -> None:
        checks.positive("learning_rate", self.learning_rate)
        ClusterMeans(self.clusters)
        checks.positive_int("local_steps", self.local_steps)

    def reads(self, problem: Any) -> tuple[str, ...]:
        return "f", "jacobian"

    def needs(self, problem: Any) -> tuple[str, ...]:
        return ("samples",)

    def check(self, problem: Problem, parts: Any, clients: int) -> None:
        if self.clusters > clients:
            raise checks.InputError(f"clusters must be at most {clients}, one per client, got {self.clusters}")

    def init(self, view: View, theta: Theta, batch: Batch) -> LocalModel:
        f = jnp.zeros(shape_of_f(view, batch).shape)
        jacobian = jnp.zeros((f.size, jax.eval_shape(view.signal, theta).size))
        return LocalModel(theta, jnp.asarray(True), jax.tree.map(jnp.zeros_like, theta), f, jacobian)

    def local_model(self, state: LocalModel, theta: Theta) -> Theta:
        return trees.where(state.is_new, theta, state.theta)

    def update(self, view: View, state: LocalModel, step: Step, key: Key) -> tuple[Step, LocalModel]:
        loss, first, slope = score_terms(view, step.deployed, step.batch, step.weights, step.f)
        gradient = jax.tree.map(jnp.add, first, pull_back(view, step.theta, step.jacobian, slope))
        state = LocalModel(step.theta, jnp.asarray(False), first, slope, step.jacobian)
        return step._replace(loss=loss, gradient=gradient), state

    def report(self, view: View, state: LocalModel, theta: Theta) -> Report:
        return {"jacobian": entries.jacobian(state.jacobian)}

    def receive(self, view: View, state: LocalModel, mail: SharedMail) -> LocalModel:
        second = pull_back(view, state.theta, mail.jacobian, state.f_gradient)
        moved = jax.tree.map(lambda x, one, two: x - self.learning_rate * (one + two), state.theta, state.first, second)
        theta = trees.where(mail.turn == 0, view.project(moved), state.theta)
        return state._replace(theta=theta, is_new=mail.averaged)

    def mail_like(self, view: View, state: LocalModel) -> SharedMail:
        return SharedMail(state.jacobian, jnp.int32(0), jnp.asarray(False))

    def open(self, view: View, theta: Theta) -> Clock:
        return Clock(jnp.int32(0), jnp.int32(0), jnp.asarray(False))

    def combine(self, view: View, server: Clock, exchange: Exchange) -> tuple[Clock, SharedMail]:
        used = exchange.accepted & (exchange.weights > 0)
        shared = ClusterMeans(self.clusters)(exchange.key, exchange.reports["jacobian"], used)
        steps = server.steps + server.turn
        averaged = (server.turn == 1) & (jax.lax.rem(steps, jnp.int32(self.local_steps)) == 0)
        clients = len(shared)
        mail = SharedMail(shared, jnp.full(clients, server.turn), jnp.full(clients, averaged))
        return Clock(1 - server.turn, steps, averaged), mail

    def combined_model(self, server: Clock, theta: Theta, sent: Theta) -> Theta:
        return trees.where(server.averaged, theta, sent)
