"""A named part of theta that stays at the client (Liang et al. 2020; Pillutla et al. 2022); not in the paper.

    theta = (shared, own):   a client deploys (shared of the server, its own), steps on both, and reports shared alone

Clients that differ in their level and not in how they react learn the reaction together and the level by themselves.
In place of its own part a client reports the one that the run began with, so nobody else sees it, and all rules, checks
and engines go on as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks, random
from profl.parts.drift_correction import DriftCorrection
from profl.parts.learning_rate import FoundLearningRate
from profl.parts.part import Part, Step
from profl.problem.problem import Problem, View
from profl.server.entries import Values
from profl.typing import Array, Batch, Key, Theta


@dataclass(frozen=True)
class ModelSplit:
    """Splits theta into a shared part and a personal one: ``names`` of its top level, or True for all of it.

    >>> split = ModelSplit("level")
    >>> split.personal({"level": 1.0, "slope": 2.0}), split.join({"level": 0.0, "slope": 2.0}, {"level": 1.0})
    ({'level': 1.0}, {'level': 1.0, 'slope': 2.0})
    """

    names: Any

    def __post_init__(self) -> None:
        names = (self.names,) if isinstance(self.names, str) else self.names
        if names is not True and not (
            isinstance(names, (tuple, list)) and names and all(isinstance(name, str) for name in names)
        ):
            raise checks.InputError(
                f"personal must be names of parts of theta such as ('level',), or True, got {names!r}"
            )
        object.__setattr__(self, "names", names if names is True else tuple(names))

    def check(self, problem: Problem) -> None:
        """Refuse a problem whose model has no such parts."""
        theta = jax.eval_shape(problem.initial, random.seed_key(0))
        if self.names is True:
            return
        if not isinstance(theta, dict):
            raise checks.InputError(
                f"personal={self.names!r} names parts of a model that is a dict, and that of {problem.name!r} is none: "
                "use personal=True for all of it, or profl.worlds.personal(problem), where a part 'own' is added to it"
            )
        for name in self.names:
            checks.one_of("personal part", name, theta)

    def personal(self, theta: Theta) -> Any:
        """The part of a model that stays at the client."""
        return theta if self.names is True else {name: theta[name] for name in self.names}

    def shared(self, theta: Theta) -> Any:
        """The part of a model that all clients have in common; {} where there is none."""
        return {} if self.names is True else {name: part for name, part in theta.items() if name not in self.names}

    def join(self, theta: Theta, personal: Any) -> Theta:
        """``theta`` with that personal part in it."""
        return personal if self.names is True else {**theta, **personal}

    def mask(self, theta: Theta) -> np.ndarray:
        """Which parameters of the flat model are personal, (d,) bool."""
        none = jax.tree.map(lambda leaf: np.zeros(leaf.shape, bool), theta)
        marked = self.join(none, jax.tree.map(np.ones_like, self.personal(none)))
        return np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(marked)])

    def describe(self) -> Any:
        """The split as a setting shows it."""
        return True if self.names is True else ", ".join(self.names)


class PersonalState(NamedTuple):
    """The personal part of a client's model."""

    own: Any  # the client's own part of theta
    first: Any  # that part as the run began
    stepped: Array  # () bool: whether the client has made a step


@dataclass(frozen=True)
class PersonalModel(Part):
    """Keeps the parts of theta that ``personal`` names at the client; after the optimiser. Not in the paper."""

    personal: ModelSplit

    def __post_init__(self) -> None:
        if not isinstance(self.personal, ModelSplit):
            raise checks.InputError(
                f"personal must be a ModelSplit such as ModelSplit('own'), got {checks.shown(self.personal)}"
            )

    def settings(self) -> dict[str, Any]:
        return {"personal": self.personal.describe()}

    def check_chain(self, parts: Sequence[Part], pooled: bool) -> None:
        if pooled:
            raise checks.InputError("a method that pools all data has one model: personal parts need clients; use pofl")
        if any(isinstance(part, DriftCorrection) for part in parts):
            raise checks.InputError(
                "correction makes all clients follow the common gradient, and personal parts follow their own: drop one"
            )
        if any(isinstance(part, FoundLearningRate) for part in parts):
            raise checks.InputError(
                "learning_rate='auto' is chosen from the gradients of whole models, which personal parts keep from the "
                "server: state a number"
            )

    def check(self, problem: Problem, parts: Sequence[Part], clients: int) -> None:
        self.personal.check(problem)

    def init(self, view: View, theta: Theta, batch: Batch) -> PersonalState:
        part = self.personal.personal(theta)
        return PersonalState(part, part, jnp.asarray(False))

    def update(self, view: View, state: PersonalState, step: Step, key: Key) -> tuple[Step, PersonalState]:
        return step, state._replace(own=self.personal.personal(step.theta), stepped=jnp.asarray(True))

    def local_model(self, state: PersonalState, theta: Theta) -> Theta:
        return self.personal.join(theta, state.own)

    def reported_model(self, state: PersonalState, theta: Theta) -> Theta:
        return self.personal.join(theta, state.first)

    def judged_model(self, theta: Theta) -> Any:
        """The shared part: beside it stands the one that the run began with, and both together may lie outside."""
        return self.personal.shared(theta)

    def combined_model(self, server: Any, theta: Theta, sent: Theta) -> Theta:
        return self.personal.join(theta, self.personal.personal(sent))

    def final(self, view: View, state: PersonalState, reports: Values) -> dict[str, Any]:
        """The client's own part, NaN where it made no step that is known here."""
        return {"personal": jax.tree.map(lambda leaf: jnp.where(state.stepped, leaf, jnp.nan), state.own)}
