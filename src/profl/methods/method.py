"""What a method is: an object with functions of its own. Engines know nothing else of it.

A method is a frozen dataclass of plain values and parts, so that two equal ones share their compiled code. Its
functions are pure, and the states that they hand on never change their shapes. ``problem`` is a ``View``: the loss, the
family, the model space, and at a client what is known exactly of its reaction.

    at a client     init      before the first step
                    deploy    the model that is deployed in place of theta
                    step      one step on the batch that came in
                    report    what is sent: the model, and what else the method needs, each with its kind. Never samples
                    receive   what the server sent back
    at the server   open      before the first round
                    combine   what was sent becomes the next model, and mail for every client

A round is R times deploy and step, then report, combine, receive. ``exchanges`` further turns of report, combine and
receive follow in the same round: deployments are expensive (days at a real site), messages are cheap.

The defaults are federated averaging without state or mail: a method of one's own needs ``step`` alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

from profl import checks
from profl.parts.part import plain
from profl.problem.problem import Problem, View
from profl.server import entries, rules
from profl.server.entries import Report, Values
from profl.server.rule_base import open_memory, weigh
from profl.typing import Array, Batch, Key, Theta


class Arrival(NamedTuple):
    """The batch that a deployment brought in."""

    batch: Batch
    weights: Array  # of the samples; they sum to one
    deployed: Theta  # the model that brought it in: not theta, where a method explores or data come late
    last: Array | bool  # whether it is the last of the round


class Forecast(NamedTuple):
    """What a method expects of the model that it has just sent out: what is left to gain, and what that would cost."""

    excess: Array  # expected L(theta) - L(PO)
    error: Array  # standard error of that
    gain: Array  # what one more deployment is expected to take off it
    price: Array  # what one more deployment is expected to lose by trying something else than theta


class Need(NamedTuple):
    """Something that a method may have to know."""

    description: str
    is_met: Callable[[Problem], bool]  # whether a problem has it
    alternative: str = ""  # what to use without it


def _always(problem: Problem) -> bool:
    return True


NEEDS = {
    "losses": Need("what the deployed model lost", _always),
    "samples": Need("samples, and a loss that has a gradient", _always),
    "family": Need("a family that describes the samples by f", _always),
    "shift": Need(
        "a family with shift(z, delta) or moved_loss",
        lambda problem: problem.family.moves,
        "use second_term='score' or 'auto'",
    ),
    "push": Need(
        "what becomes of a sample under another model, Problem(push=...)",
        lambda problem: problem.push is not None,
        "use second_term='auto'",
    ),
    "exact map": Need(
        "a problem that states f(theta) of one client",
        lambda problem: problem.reaction.parameters is not None,
        "use jacobian='tracking'",
    ),
}
"""What ``Method.needs`` may name."""


class Method:
    """Base class of all methods; see the module. Subclasses are frozen dataclasses.

    Attributes:
      name: shown in tables and plots.
      needs: what it must know, words of ``NEEDS``; a problem that lacks one is refused.
      pooled: one centralised learner on everybody's data instead of a federation.
      exchanges: turns of messages in a round that deploy nothing.
      aggregate: how the server combines models: a name of ``profl.server.rules.RULES``, also with "nnm+" before it and
        the share to withstand behind it ("history:0.3"), or a rule of one's own.
      info: the names of what ``step`` states; a run records them. "loss" is always one of them.
      sizes: the batch sizes that may occur, where the method itself says how many samples to draw; else None.
      least_deployments: fewest deployments per client that a run can learn anything from.
      draws: whether ``combine`` uses its key.
      rereads: whether ``step`` reads its batch so often that it pays to have it in memory.
    """

    name: str = "method"
    needs: tuple[str, ...] = ("samples",)
    pooled: bool = False
    exchanges: int = 0
    aggregate: Any = "mean"
    info: tuple[str, ...] = ("loss",)
    sizes: tuple[int, ...] | None = None
    least_deployments: int = 1
    draws: bool = True
    rereads: bool = False

    def check(self, problem: Problem) -> None:
        """Refuse a problem that cannot give what the method needs, before any work."""
        rules.get(self.aggregate)
        for need in self.needed(problem):
            description, is_met, alternative = NEEDS[checks.one_of("need", need, NEEDS)]
            if not is_met(problem):
                whose = f"{problem.name!r} pooled over clients" if self.pooled else repr(problem.name)
                raise checks.InputError(f"{self.name} needs {description}; {whose} has none: {alternative}")

    def needed(self, problem: Problem) -> tuple[str, ...]:
        """``needs``, where the problem is at hand: what a problem offers may make another requirement unnecessary."""
        return self.needs

    def settings(self) -> dict[str, Any]:
        """The arguments of the method by name, as plain values."""
        assert is_dataclass(self)
        return {
            field.name: plain(getattr(self, field.name)) for field in fields(self) if field.name not in HIDDEN_SETTINGS
        }

    def numbers(self) -> Any:
        """Numbers that a compiled program may take as arguments, as a pytree of floats: learning rates, tolerances."""
        return ()

    def with_numbers(self, numbers: Any) -> Method:
        """The same method with other ``numbers``, which may be traced."""
        return self

    # -- at a client ---------------------------------------------------------------------------------------------------

    def init(self, problem: View, theta: Theta, batch: Batch) -> Any:
        """The state before the first step; only the shapes of ``batch`` matter."""
        return ()

    def init_client(self, state: Any, client: Array) -> Any:
        """The first state of client number ``client``, from the one that all of them have in common."""
        return state

    def deploy(self, problem: View, state: Any, key: Key, theta: Theta) -> tuple[Theta, Any]:
        """What is deployed in place of ``theta``, and the state that remembers it."""
        return theta, state

    def step(
        self, problem: View, state: Any, theta: Theta, arrival: Arrival, key: Key
    ) -> tuple[Theta, Any, dict[str, Array]]:
        """The model after one step, the new state, and the numbers that ``info`` names."""
        raise NotImplementedError(f"{type(self).__name__} must define step(problem, state, theta, arrival, key)")

    def samples_wanted(self, state: Any) -> Array:
        """How many samples to draw in the next round; asked only of a method that states ``sizes``."""
        raise NotImplementedError(f"{type(self).__name__} states sizes: it must define samples_wanted(state)")

    def report(self, problem: View, state: Any, theta: Theta) -> Report:
        """What is sent to the server: entries of ``profl.server.entries`` by name, the model "theta" among them."""
        return {"theta": entries.model(theta)}

    def judged(self, theta: Theta) -> Any:
        """The part of a reported model that must lie in the model space."""
        return theta

    def receive(self, problem: View, state: Any, theta: Theta, mail: Any) -> tuple[Theta, Any]:
        """The model to go on with, and the state, once the server has sent ``theta`` and this client's ``mail``."""
        return theta, state

    @property
    def rests_without_mail(self) -> bool:
        """Whether ``receive`` changes nothing where the server sends no mail beside its model."""
        return type(self).receive is Method.receive

    def figures(self, problem: View, state: Any, theta: Theta) -> dict[str, Array]:
        """Numbers that show how a client stands at a record, such as the error of what it has estimated.

        ``run.info`` has their means: over all clients at the global model in ``simulate``, over those of the last round
        at their own models where clients are no simulation.
        """
        return {}

    def final(self, problem: View, state: Any, report: Values) -> Any:
        """What ``run.final`` keeps of a client at the end, besides the model; None for nothing.

        ``report`` has the values of its last report by name.

        Over Flower clients keep their states: there ``state`` holds only what the last mail brought.
        """
        return None

    # -- at the server -------------------------------------------------------------------------------------------------

    def open(self, problem: View, theta: Theta) -> Any:
        """The server's state before the first round: what the aggregation rule remembers, where it does."""
        return open_memory(rules.get(self.aggregate), problem, theta)

    def combine(
        self, problem: View, server: Any, theta: Theta, reports: Values, weights: Array, accepted: Array, key: Key
    ) -> tuple[Theta, Any, Any]:
        """The next model, the server's state, and the mail: a pytree with one row per report, () for none.

        ``theta`` is the model that was sent; ``reports`` has the values of the entries, one row per client.
        Rows that are not ``accepted`` may hold anything.
        Whose they are is in ``problem.client_ids``, out of ``problem.client_count`` clients; a client that was drawn
        twice is there twice.
        """
        rule, models = rules.get(self.aggregate), reports["theta"]
        weights, memory = weigh(rule, server, problem, models, weights, accepted, theta)
        return rule.aggregate_weighed(models, weights, accepted, theta), memory, ()

    def forecast(self, problem: View, server: Any) -> Forecast | None:
        """What is expected of the model, from the server's state once it is combined; None where nothing is stated."""
        return None

    def posterior(self, problem: View, server: Any) -> Any:
        """What is known of the optimum, from the server's state; None where nothing is stated.

        A ``profl.methods.intervals.Posterior`` of NumPy arrays. ``server`` may have an axis of seeds in front.
        """
        return None

    def distrusted(self, server: Any) -> dict[str, Any]:
        """The round from which on each client is distrusted, (clients,), -1 where it is not; by the reason in words.

        ``server`` may have an axis of seeds in front.
        """
        rule = rules.get(self.aggregate)
        own = type(self).combine is not Method.combine or not rule.has_memory
        return {} if own else {f"models {why}": since for why, since in rule.distrusted(server).items()}

    def mail_like(self, problem: View, state: Any) -> Any:
        """One client's mail as it is before there is any: it states the shapes."""
        return ()


HIDDEN_SETTINGS = ("name", "pooled")
"""Fields of a method that ``settings`` leaves out."""


def check_method(value: Any) -> None:
    """Refuse what is not a ``Method``."""
    if not isinstance(value, Method):
        raise checks.InputError(f"method must be one such as profl.pofl(), got {checks.shown(value)}")
