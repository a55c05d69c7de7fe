"""``personal=``: a named part of theta stays at the client (Liang et al. 2020; Pillutla et al. 2022).

    theta = (shared, own):   a client deploys (shared of the server, its own), steps on both, and reports shared alone

Clients that differ in their level and not in how they answer learn the answer together and the level by themselves.
In place of its own part a client reports the one that the run began with, so nobody else sees it, and all rules, checks
and engines go on as they are.

A method that minimises a risk between deployments (``prm``) moves no part in its steps. It has two functions more:

    settle    (problem, state, theta, base, mine) -> theta     one's own part, once the shared one has come
    withhold  (problem, state, theta, base, first, mine, told) -> told    the report, for a server that moves the rest

``base`` and ``first`` have the own part of the last step and of the start; ``mine`` (d,) says which parameters it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks, random
from profl.methods.method import Arrival, Forecast, Method, Report
from profl.problem.problem import Problem, View
from profl.typing import Array, Batch, Key, Theta

M = TypeVar("M", bound=Method)


class Owned(NamedTuple):
    """What a client keeps."""

    method: Any  # the method's own state
    part: Any  # its own part of theta
    first: Any  # that part as the run began
    base: Any  # that part as it was at the last step
    stepped: Array  # () bool: whether it has made a step


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


@dataclass(frozen=True)
class Personal(Method):
    """``method`` with ``parts`` of theta that stay at the client: names of its top level, or True for all of it."""

    method: Method
    parts: Any

    def __post_init__(self) -> None:
        parts = (self.parts,) if isinstance(self.parts, str) else self.parts
        if parts is not True and not (
            isinstance(parts, (tuple, list)) and parts and all(isinstance(p, str) for p in parts)
        ):
            raise checks.InputError(
                f"personal must be names of parts of theta such as ('level',), or True, got {parts!r}"
            )
        object.__setattr__(self, "parts", parts if parts is True else tuple(parts))
        if not isinstance(self.method, Method):
            raise checks.InputError(f"personal parts are for a method such as profl.pofl(), got {self.method!r}")
        self._check_method()

    def _check_method(self) -> None:
        method, name = self.method, self.method.name
        if method.pooled:
            raise checks.InputError(f"{name} pools all data and has one model: personal parts need clients; use pofl")
        if method.exchanges and not hasattr(method, "settle"):
            raise checks.InputError(
                f"{name} minimises one risk for all at the server, where personal parts are not known; use prm or pofl"
            )
        if getattr(method, "correction", None) is not None:
            raise checks.InputError(
                "correction makes all clients follow the common gradient, and personal parts follow their own: drop one"
            )
        if getattr(method, "finds_rate", False):
            raise checks.InputError(
                "learning_rate='auto' is found from the gradients of whole models, which personal parts keep from the "
                "server: state a number"
            )

    # -- what is the method's own --------------------------------------------------------------------------------------

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.method.name

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.method.needs

    @property
    def aggregate(self) -> Any:
        return self.method.aggregate

    @property
    def exchanges(self) -> int:  # type: ignore[override]
        return self.method.exchanges

    @property
    def minimises(self) -> bool:
        """Whether the method minimises a risk that the client knows, between deployments: ``settle``, ``withhold``."""
        return hasattr(self.method, "settle")

    @property
    def info(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.method.info

    @property
    def sizes(self) -> tuple[int, ...] | None:  # type: ignore[override]
        return self.method.sizes

    @property
    def least_deployments(self) -> int:  # type: ignore[override]
        return self.method.least_deployments

    @property
    def rereads(self) -> bool:  # type: ignore[override]
        return self.method.rereads

    def check(self, problem: Problem) -> None:
        self.method.check(problem)
        theta = jax.eval_shape(problem.initial, random.seed_key(0))
        if self.parts is True:
            return
        if not isinstance(theta, dict):
            raise checks.InputError(
                f"personal={self.parts!r} names parts of a model that is a dict, and that of {problem.name!r} is none: "
                "use personal=True for all of it, or profl.worlds.personal(problem), where a part 'own' is added to it"
            )
        for part in self.parts:
            checks.one_of("personal part", part, theta)

    def settings(self) -> dict[str, Any]:
        return self.method.settings() | {"personal": True if self.parts is True else ", ".join(self.parts)}

    # -- at a client ---------------------------------------------------------------------------------------------------

    def init(self, problem: View, theta: Theta, batch: Batch) -> Owned:
        part = self.part(theta)
        return Owned(self.method.init(problem, theta, batch), part, part, part, jnp.asarray(False))

    def deploy(self, problem: View, state: Owned, key: Key, theta: Theta) -> tuple[Theta, Owned]:
        deployed, own = self.method.deploy(problem, state.method, key, self.joined(theta, state.part))
        return deployed, state._replace(method=own)

    def step(
        self, problem: View, state: Owned, theta: Theta, arrival: Arrival, key: Key
    ) -> tuple[Theta, Owned, dict[str, Array]]:
        mine = self.joined(theta, state.part)
        theta, own, info = self.method.step(problem, state.method, mine, arrival, key)
        part = self.part(theta)
        return theta, state._replace(method=own, part=part, base=part, stepped=jnp.asarray(True)), info

    def samples_wanted(self, state: Owned) -> Array:
        return self.method.samples_wanted(state.method)

    def report(self, problem: View, state: Owned, theta: Theta) -> Report:
        mine = self.joined(theta, state.part)
        told = self.method.report(problem, state.method, mine)
        if self.minimises:
            parts = self.joined(theta, state.base), self.joined(theta, state.first), self.places(theta)
            told = self.method.withhold(problem, state.method, mine, *parts, told)  # type: ignore[attr-defined]
        return {**told, "theta": self.joined(told["theta"], state.first)}

    def judged(self, theta: Theta) -> Any:
        """The shared part: beside it stands the one that the run began with, and both together may lie outside."""
        return {} if self.parts is True else {name: part for name, part in theta.items() if name not in self.parts}

    def receive(self, problem: View, state: Owned, theta: Theta, mail: Any) -> tuple[Theta, Owned]:
        theta, own = self.method.receive(problem, state.method, theta, mail)
        if not self.minimises:
            return theta, state._replace(method=own)
        mine, base = self.joined(theta, state.part), self.joined(theta, state.base)
        mine = self.method.settle(problem, own, mine, base, self.places(theta))  # type: ignore[attr-defined]
        return theta, state._replace(method=own, part=self.part(mine))

    def mail_like(self, problem: View, state: Owned) -> Any:
        return self.method.mail_like(problem, state.method)

    def figures(self, problem: View, state: Owned, theta: Theta) -> dict[str, Array]:
        return self.method.figures(problem, state.method, self.joined(theta, state.part))

    def final(self, problem: View, state: Owned, report: Report) -> Any:
        """Its own part, NaN where it made no step that is known here; and what the method keeps."""
        part = jax.tree.map(lambda leaf: jnp.where(state.stepped, leaf, jnp.nan), state.part)
        return {"personal": part, "method": self.method.final(problem, state.method, report)}

    # -- at the server -------------------------------------------------------------------------------------------------

    def open(self, problem: View, theta: Theta) -> Any:
        return self.method.open(problem, theta)

    def combine(
        self, problem: View, server: Any, theta: Theta, reports: Report, weights: Array, accepted: Array, key: Key
    ) -> tuple[Theta, Any, Any]:
        model, server, mail = self.method.combine(problem, server, theta, reports, weights, accepted, key)
        return self.joined(model, self.part(theta)), server, mail

    def forecast(self, problem: View, server: Any) -> Forecast | None:
        """What a method that minimises expects is of the shared part alone, and says nothing of all models."""
        return None if self.minimises else self.method.forecast(problem, server)

    # -- inside --------------------------------------------------------------------------------------------------------

    def part(self, theta: Theta) -> Any:
        """The part of a model that stays at the client."""
        return theta if self.parts is True else {name: theta[name] for name in self.parts}

    def places(self, theta: Theta) -> np.ndarray:
        """Which parameters of the flat model these are, (d,) bool."""
        none = jax.tree.map(lambda leaf: np.zeros(leaf.shape, bool), theta)
        marked = self.joined(none, jax.tree.map(np.ones_like, self.part(none)))
        return np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(marked)])

    def joined(self, theta: Theta, part: Any) -> Theta:
        """The model with that part in it."""
        return part if self.parts is True else {**theta, **part}


def kept(method: M, parts: Any) -> M:
    """``method``, with personal ``parts`` where there are any; it stands wherever the method itself does."""
    found: Any = method if parts is None else Personal(method, parts)
    return found
