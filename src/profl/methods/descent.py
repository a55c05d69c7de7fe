"""Descent: one optimiser step along a gradient for every batch that comes in (paper, Algorithm 1, lines 6-16).

w      <- filter(gradients, w)             line 7/11
g      <- L1                               what ``slope`` makes of the batch; PoFL's is L1 + J^T u
g      <- g - own + common                 where drift is corrected: ``profl.parts.drift_correction``
theta  <- Proj(theta - optimiser(g))       line 9/14
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from profl import checks, trees
from profl.methods.method import Arrival, Method, Report
from profl.parts import drift_correction, filters, trusted_samples
from profl.parts import learning_rate as paces
from profl.parts.gradient import terms
from profl.problem.problem import View
from profl.server import learning_rate as rates
from profl.server import rules
from profl.server.aggregate import combine_models, weigh
from profl.stages import stage
from profl.typing import Array, Batch, Key, Theta

Optimiser: TypeAlias = Callable[..., Any] | optax.GradientTransformation
"""An optax factory such as ``optax.sgd``, or a ready transformation, which then carries its own learning rate."""


class State(NamedTuple):
    """What a client's next step needs; PoFL fills in what stands behind the optimiser's."""

    optimiser: Any
    jacobian: Any = ()  # the estimator's
    shared: Any = ()  # the Jacobian that the server sent, and one's own then, where they are shared
    explored: Any = ()  # the last perturbation, where it explores
    samples: Any = ()  # () int32: how many samples to draw next, where it adapts them
    measures: Any = ()  # natural units, where it works in them
    control: Any = ()  # a ``Control``, where drift is corrected
    pace: Any = ()  # a ``Pace``, where the learning rate is found
    filter: Any = ()  # what the filter remembers, where it does
    spread: Any = ()  # a ``Spread``, where it looks whether that moves


class Server(NamedTuple):
    """What the server keeps from round to round."""

    common: Any = ()  # the gradient that all reports have in common, where drift is corrected
    rate: Any = ()  # a ``Rate``, where the learning rate is found
    memory: Any = ()  # what the aggregation rule remembers, where it does


@dataclass(frozen=True)
class Descent(Method):
    """Follows L1 alone and so ends at the stable point; made by ``profl.pfl``, ``profl.rgd`` and ``profl.rrm``.

    Args:
      name: shown in tables and plots.
      learning_rate: eta, handed to ``optimiser``; or "auto", for one that the server finds, by
        which then the steps of ``optimiser`` with a learning rate of one are multiplied.
      optimiser: an optax factory such as ``optax.sgd``, or a ready transformation with its own learning rate.
      inner_steps: gradient steps on one batch.
      pooled: one centralised learner on everybody's data instead of a federation.
      filter: which samples to trust: "none", "robust", "paper", or a function ``(gradients, weights) -> weights``.
      aggregate: how the server combines models; see ``Method``.
      correction: "scaffold" for control variates against local drift (``profl.parts.drift_correction``); None for none.
    """

    name: str
    learning_rate: float | str = 0.01
    optimiser: Optimiser = optax.sgd
    inner_steps: int = 1
    pooled: bool = False
    filter: Any = "none"
    aggregate: Any = "mean"
    correction: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.learning_rate, str):
            checks.one_of("learning_rate", self.learning_rate, ["auto"])
        else:
            checks.positive("learning_rate", self.learning_rate)
        if self.correction is not None:
            checks.one_of("correction", self.correction, drift_correction.CORRECTIONS)
        checks.positive_int("inner_steps", self.inner_steps)
        check_optimiser(self.optimiser)
        filters.check(filters.get(self.filter))
        rules.get(self.aggregate)

    @property
    def info(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("loss", *(["kept"] if self.filter != "none" else []), *(["rate"] if self.finds_rate else []))

    @property
    def rereads(self) -> bool:  # type: ignore[override]
        return self.filter != "none" or self.finds_rate

    @property
    def finds_rate(self) -> bool:
        return self.learning_rate == "auto"

    @property
    def transformation(self) -> optax.GradientTransformation:
        return transformation(self.optimiser, 1.0 if self.finds_rate else float(self.learning_rate))

    def init(self, problem: View, theta: Theta, batch: Batch) -> State:
        return State(self.transformation.init(theta))._replace(**self._kept(problem, theta, batch))

    def step(
        self, problem: View, state: State, theta: Theta, arrival: Arrival, key: Key
    ) -> tuple[Theta, State, dict[str, Array]]:
        batch, weights, told = arrival.batch, arrival.weights, {}
        if self.filter != "none":
            with stage("filter") as check:  # lines 7 and 11: which samples to trust
                chosen = filters.get(self.filter)
                weights, told["kept"], memory = check(
                    trusted_samples.filter_weights(problem, chosen, arrival.deployed, batch, weights, state.filter)
                )
                state = state._replace(filter=memory)
        loss, gradient, state = self.slope(problem, state, theta, arrival._replace(weights=weights))
        factor = None
        if self.finds_rate:
            pace = paces.noted(problem, state.pace, arrival.deployed, batch, weights, gradient)
            state, factor, told["rate"] = state._replace(pace=pace), paces.factor(pace, theta), pace.rate
        if self.correction is not None:
            gradient, kept = drift_correction.corrected(state.control, gradient)
            state = state._replace(control=kept)
        with stage("update") as check:  # lines 9 and 14: project(theta - eta g)
            theta, optimiser = check(
                descend(
                    problem,
                    self.transformation,
                    state.optimiser,
                    theta,
                    gradient,
                    batch,
                    weights,
                    self.inner_steps,
                    factor,
                )
            )
        return theta, state._replace(optimiser=optimiser), {"loss": loss, **told}

    def slope(self, problem: View, state: State, theta: Theta, arrival: Arrival) -> tuple[Array, Theta, State]:
        """The loss, the gradient to follow, and the state with this deployment in it."""
        with stage("gradient") as check:
            nothing = jnp.zeros((0,))
            found = check(terms(problem, "none", arrival.deployed, arrival.batch, arrival.weights, nothing))
        return found.loss, found.first, state

    def report(self, problem: View, state: State, theta: Theta) -> Report:
        told: Report = {"theta": theta}
        if self.correction is not None:
            told["control"] = drift_correction.mean(state.control)
        return {**told, **paces.report(state.pace)} if self.finds_rate else told

    def receive(self, problem: View, state: State, theta: Theta, mail: Any) -> tuple[Theta, State]:
        if self.correction is not None:
            state = state._replace(control=drift_correction.received(state.control, mail["common"]))
        if self.finds_rate:
            state = state._replace(pace=paces.received(state.pace, mail["rate"], mail["scales"]))
        return theta, state

    def mail_like(self, problem: View, state: State) -> Any:
        mail = {} if self.correction is None else {"common": state.control.common}
        if self.finds_rate:
            mail |= {"rate": state.pace.rate, "scales": state.pace.scales}
        return mail or ()

    def open(self, problem: View, theta: Theta) -> Server:
        return Server(
            () if self.correction is None else drift_correction.begin(theta).common,
            rates.begin(trees.ravel(theta)) if self.finds_rate else (),
            super().open(problem, theta),
        )

    def combine(
        self, problem: View, server: Server, theta: Theta, reports: Report, weights: Array, accepted: Array, key: Key
    ) -> tuple[Theta, Server, Any]:
        mail, rule, models = {}, rules.get(self.aggregate), reports["theta"]
        weights, memory = weigh(rule, server.memory, problem, models, weights, accepted, theta)
        model, server = combine_models(rule, models, weights, accepted, theta), server._replace(memory=memory)
        if self.correction is not None:
            common = combine_models(rule, reports["control"], weights, accepted, server.common)
            mail, server = {"common": common}, server._replace(common=common)
        if self.finds_rate:
            flat = trees.ravel(theta)
            told = {name: reports[name] for name in ("gradient", "gradient_noise", "deployed")}
            told["scales"] = jnp.log(jnp.maximum(reports["scales"], jnp.finfo(flat.dtype).tiny))
            centre = {**dict.fromkeys(told, 0 * flat), "deployed": flat}
            found = {name: combine_models(rule, told[name], weights, accepted, centre[name]) for name in told}
            steps = jnp.max(jnp.where(accepted, reports["steps"], 1))
            seen = (found["deployed"], found["gradient"], found["gradient_noise"], jnp.exp(found["scales"]))
            rate, known = rates.update(server.rate, *seen, steps)
            mail, server = {**mail, "rate": rate, "scales": known.scales}, server._replace(rate=known)
        return model, server, trees.repeat(mail, len(weights)) or ()

    def _kept(self, problem: View, theta: Theta, batch: Batch) -> dict[str, Any]:
        """What all descending methods keep at a client besides the optimiser's state."""
        return {
            "control": () if self.correction is None else drift_correction.begin(theta),
            "pace": paces.begin(theta) if self.finds_rate else (),
            "filter": trusted_samples.begin(problem, filters.get(self.filter), theta, batch),
        }


def shape_of_f(problem: View, batch: Batch) -> Any:
    """The shape of f_hat, from the shapes of a batch."""
    n = jax.tree.leaves(batch)[0].shape[0]
    return jax.eval_shape(problem.family.estimate, batch, jax.ShapeDtypeStruct((n,), jnp.float32))


@lru_cache(maxsize=256)
def transformation(optimiser: Any, learning_rate: float) -> optax.GradientTransformation:
    """Made once per setting: optax transformations compare by identity, and a new one would mean compiling again."""
    return optimiser if hasattr(optimiser, "update") else optimiser(learning_rate)


def check_optimiser(optimiser: Any) -> None:
    if not callable(optimiser) and not hasattr(optimiser, "update"):
        raise checks.InputError(
            f"optimiser must be an optax factory (optax.sgd, ...) or transformation, got {optimiser!r}"
        )


def descend(
    problem: View,
    optimiser: optax.GradientTransformation,
    state: Any,
    theta: Theta,
    gradient: Theta,
    batch: Batch,
    weights: Array,
    inner_steps: int = 1,
    factor: Theta | None = None,
) -> tuple[Theta, Any]:
    """One projected optimiser step; or ``inner_steps`` on the same batch, each with the gradient L1 found there.

    Where there is a ``factor``, updates are multiplied by it.
    """

    def move(carry: tuple[Theta, Any], slope: Theta) -> tuple[Theta, Any]:
        updates, new = optimiser.update(slope, carry[1], carry[0])
        updates = updates if factor is None else jax.tree.map(jnp.multiply, updates, factor)
        return problem.project(optax.apply_updates(carry[0], updates)), new

    def again(_: int, carry: tuple[Theta, Any]) -> tuple[Theta, Any]:
        losses = jax.vmap(problem.loss, (None, 0))
        return move(carry, jax.grad(lambda t: weights @ losses(t, batch))(carry[0]))

    first = move((theta, state), gradient)
    return first if inner_steps == 1 else jax.lax.fori_loop(1, inner_steps, again, first)
