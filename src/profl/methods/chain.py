"""A method as a chain of parts, each one line of the algorithm (``profl.parts.part`` has their contract).

    chain(TrustedSamples("robust"), EstimatedParameters(), ..., Optimiser(0.01), Averaging("mean"), name="profl")

In a step of a client the parts' ``update`` run in the order of the chain, each with what those before it computed. At
the server the averaging part comes first, because whatever else clients send is combined under its rule and by the
weights that it leaves them. A part that only serves others is left out where these do not need it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from profl import checks
from profl.methods.method import NEEDS, Arrival, Method
from profl.parts.averaging import Averaging
from profl.parts.part import Exchange, Part, Step, plain, unchecked
from profl.problem.problem import Problem, View
from profl.server.entries import Report, Values
from profl.typing import Array, Batch, Key, Theta

P = TypeVar("P", bound=Part)


@checks.explain_call
def chain(*parts: Part | None, name: str = "chain", pooled: bool = False) -> Chain:
    """The method that these parts make, in this order; None stands for no part.

    Without an ``Averaging`` among them the server takes the mean of the models.

    >>> from profl import parts
    >>> chain(parts.PlainGradient(), parts.Optimiser(0.1), name="retraining").settings()["learning_rate"]
    0.1
    """
    wanted = tuple(part for part in parts if part is not None)
    for part in wanted:
        if not isinstance(part, Part):
            raise checks.InputError(
                f"a chain is made of profl.parts such as profl.parts.Optimiser(0.1), got {checks.shown(part)}"
            )
    if not wanted:
        raise checks.InputError("a chain needs parts such as profl.parts.Optimiser(0.1), got none")
    if not any(isinstance(part, Averaging) for part in wanted):
        wanted = (*wanted, Averaging())
    return Chain(wanted, name, pooled)


@dataclass(frozen=True)
class Chain(Method):
    """A method made of parts by ``chain``; implements the contract of the engines."""

    parts: tuple[Part, ...]
    name: str = "chain"
    pooled: bool = False

    def __post_init__(self) -> None:
        checks.text("name", self.name)
        checks.flag("pooled", self.pooled)
        averaging = [part for part in self.parts if isinstance(part, Averaging)]
        if len(averaging) != 1:
            raise checks.InputError(f"a chain has one Averaging part, got {len(averaging)}")
        if len([part for part in self.parts if part.sizes is not None]) > 1:
            raise checks.InputError("only one part of a chain can say how many samples to draw")
        for part in self.parts:
            part.check_chain(self.parts, self.pooled)

    # -- what the engines ask before a run -----------------------------------------------------------------------------

    @property
    def averaging(self) -> Averaging:
        return self.part(Averaging)

    def part(self, kind: type[P]) -> P:
        """The first part of that kind.

        >>> from profl import parts
        >>> chain(parts.PlainGradient(), parts.Optimiser(0.1)).part(parts.Optimiser).learning_rate
        0.1
        """
        for part in self.parts if isinstance(kind, type) else ():
            if isinstance(part, kind):
                return part
        wanted = getattr(kind, "__name__", checks.shown(kind))
        raise checks.InputError(f"{self.name} has no {wanted}; it has {', '.join(map(plain, self.parts))}")

    @property
    def aggregate(self) -> Any:
        return self.averaging.aggregate

    @property
    def info(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("loss", *(name for part in self.parts for name in part.info))

    @property
    def exchanges(self) -> int:  # type: ignore[override]
        return max(part.exchanges for part in self.parts)

    @property
    def rereads(self) -> bool:  # type: ignore[override]
        return any(part.rereads for part in self.active(None).values())

    @property
    def draws(self) -> bool:  # type: ignore[override]
        return any(part.draws for part in self.parts if type(part).combine is not Part.combine)

    @property
    def sizes(self) -> tuple[int, ...] | None:  # type: ignore[override]
        return next((part.sizes for part in self.parts if part.sizes is not None), None)

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.needed(None)

    def needed(self, problem: Problem | View | None) -> tuple[str, ...]:
        words = {word for part in self.active(problem).values() for word in part.needs(problem)}
        return tuple(word for word in NEEDS if word in words)

    def check(self, problem: Problem) -> None:
        super().check(problem)
        for part in self.active(problem).values():
            part.check(problem, self.parts, 1 if self.pooled else problem.count)

    def settings(self) -> dict[str, Any]:
        return {name: value for part in self.parts for name, value in part.settings().items()}

    def active(self, problem: Problem | View | None) -> dict[int, Part]:
        """The parts that a problem needs, by their index: a part that serves none of the later ones is left out."""
        wanted: dict[int, Part] = {}
        read: set[str] = set()
        for place, part in reversed(list(enumerate(self.parts))):
            if not part.serves or read & set(part.serves):
                wanted[place] = part
                read |= set(part.reads(problem))
        return dict(sorted(wanted.items()))

    def numbers(self) -> tuple[dict[str, float], ...]:
        return tuple(part.numbers() for part in self.parts)

    def with_numbers(self, numbers: tuple[dict[str, Any], ...]) -> Chain:
        parts = tuple(part.with_numbers(own) for part, own in zip(self.parts, numbers, strict=True))
        return unchecked(self, parts=parts)

    # -- at a client ---------------------------------------------------------------------------------------------------
    # States, server states and mail are tuples with one place per part, () for a part that is left out.

    def init(self, problem: View, theta: Theta, batch: Batch) -> tuple[Any, ...]:
        return self._fill({i: part.init(problem, theta, batch) for i, part in self.active(problem).items()})

    def deploy(self, problem: View, state: Any, key: Key, theta: Theta) -> tuple[Theta, Any]:
        theta, states = self._local_model(state, theta), list(state)
        for i, part in self.active(problem).items():
            theta, states[i] = part.deploy(problem, state[i], key, theta)
        return theta, tuple(states)

    def step(
        self, problem: View, state: Any, theta: Theta, arrival: Arrival, key: Key
    ) -> tuple[Theta, Any, dict[str, Array]]:
        batch, weights, deployed, last = arrival
        step = Step(self._local_model(state, theta), deployed, batch, weights, last, {}, signal=problem.signal)
        states = list(state)
        for i, part in self.active(problem).items():
            step, states[i] = part.update(problem, state[i], step, key)
        if step.loss is None:
            raise checks.InputError(f"{self.name} has no part that computes a loss: add PlainGradient() or another")
        if problem.max_change is not None:  # a model that could not be deployed next would run away from its data
            step = step._replace(theta=problem.max_change.nearest(problem.project, step.theta, deployed))
        unstated = dict.fromkeys(self.info, jnp.asarray(jnp.nan))  # by parts that this problem leaves out
        return step.theta, tuple(states), {**unstated, "loss": step.loss, **step.info}

    def samples_wanted(self, state: Any) -> Array:
        place = next(i for i, part in enumerate(self.parts) if part.sizes is not None)
        return self.parts[place].samples_wanted(state[place])

    def report(self, problem: View, state: Any, theta: Theta) -> Report:
        theta = self._local_model(state, theta)
        report: Report = {}
        for i, part in self.active(problem).items():
            own = part.report(problem, state[i], theta)
            if both := sorted(set(own) & set(report)):
                raise checks.InputError(f"two parts of {self.name} report an entry {both[0]!r}: rename one")
            report |= own
        for i, part in self.active(problem).items():
            report["theta"] = report["theta"].replace(part.reported_model(state[i], report["theta"].value))
        return report

    def judged(self, theta: Theta) -> Any:
        for part in self.parts:
            theta = part.judged_model(theta)
        return theta

    def receive(self, problem: View, state: Any, theta: Theta, mail: Any) -> tuple[Theta, Any]:
        states = list(state)
        for i, part in self.active(problem).items():
            if mail and jax.tree.leaves(mail[i]):
                states[i] = part.receive(problem, state[i], mail[i])
        return theta, tuple(states)

    @property
    def rests_without_mail(self) -> bool:
        return type(self).receive is Chain.receive

    def mail_like(self, problem: View, state: Any) -> Any:
        return _or_nothing(
            self._fill({i: part.mail_like(problem, state[i]) for i, part in self.active(problem).items()})
        )

    def figures(self, problem: View, state: Any, theta: Theta) -> dict[str, Array]:
        theta = self._local_model(state, theta)
        figures: dict[str, Array] = {}
        for i, part in self.active(problem).items():
            figures |= part.figures(problem, state[i], theta)
        return figures

    def final(self, problem: View, state: Any, report: Values) -> Any:
        values: dict[str, Any] = {}
        for i, part in self.active(problem).items():
            values |= part.final(problem, state[i], report)
        return values or None

    # -- at the server -------------------------------------------------------------------------------------------------

    def open(self, problem: View, theta: Theta) -> tuple[Any, ...]:
        servers = {i: part.open(problem, theta) for i, part in self.active(problem).items()}
        place = self.parts.index(self.averaging)
        others = [name for part in self.active(problem).values() for name in part.combined]
        return self._fill({**servers, place: self.averaging.open_for(problem, theta, others)})

    def combine(
        self,
        problem: View,
        server: Any,
        theta: Theta,
        reports: Values,
        weights: Array,
        accepted: Array,
        key: Key,
    ) -> tuple[Theta, Any, Any]:
        place, servers, mail = self.parts.index(self.averaging), list(server), {}
        trusted, servers[place] = self.averaging.weigh(problem, server[place], reports, weights, accepted, theta)
        weighed = tuple(servers[place])
        exchange = Exchange(theta, reports, weights, trusted, accepted, key, self.averaging.rule, weighed)
        model = exchange.combine("theta", theta)
        for i, part in self.active(problem).items():
            servers[i], mail[i] = part.combine(problem, servers[i], exchange)
            model = part.combined_model(servers[i], model, theta)
        return model, tuple(servers), _or_nothing(self._fill(mail))

    def distrusted(self, server: Any) -> dict[str, Any]:
        return self.averaging.distrusted(server[self.parts.index(self.averaging)])

    # -- inside --------------------------------------------------------------------------------------------------------

    def _fill(self, values: dict[int, Any]) -> tuple[Any, ...]:
        return tuple(values.get(i, ()) for i in range(len(self.parts)))

    def _local_model(self, state: Any, theta: Theta) -> Theta:
        for part, own in zip(self.parts, state, strict=True):
            theta = part.local_model(own, theta)
        return theta


def _or_nothing(mail: Any) -> Any:
    """() where no part has mail."""
    return mail if jax.tree.leaves(mail) else ()
