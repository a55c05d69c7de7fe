"""What a part is: one line of an algorithm, with the state, the messages and the server state that belong to it.

    at a client     init      its state before the first step
                    deploy    what is deployed in place of theta
                    update    reads the step so far and hands on a changed one
                    report    its entries of the client's report
                    receive   its state once its mail has come
    at the server   open      its server state before the first round
                    combine   its entries of all reports become its next server state and its mail

Every function has a default that does nothing. ``profl.methods.chain`` puts parts in a row. All functions are pure, and
states never change their shapes. ``view`` is the problem as a method sees it (``profl.problem.problem.View``).

>>> class HalfStep(Part):
...     def update(self, view, state, step, key):
...         return step._replace(gradient=jax.tree.map(lambda g: g / 2, step.gradient)), state
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

import jax

from profl.problem.problem import Problem, View
from profl.server.entries import Report, Values
from profl.server.rule_base import Rule
from profl.typing import Array, Batch, Key, Theta

T = TypeVar("T")


class Step(NamedTuple):
    """What flows through the chain in one step of a client; what no part has computed yet is None."""

    theta: Theta  # the model before the step; after the optimiser, the model after it
    deployed: Theta  # the model that brought the batch in: not theta, where a part explores or data come late
    batch: Batch
    weights: Array  # of the samples, summing to one
    last: Array | bool  # whether it is the last step of the round
    info: dict[str, Array]  # numbers that a run records, by name
    f: Any = None  # the estimated parameters of the data's distribution, (p,)
    f_variance: Any = None  # of their sampling noise, (p,)
    units: Any = None  # natural units, a ``profl.parts.units.StepUnits``
    jacobian: Any = None  # df/dsignal, (p, s)
    jacobian_error: Any = None  # the squared error of its entries, (p, s)
    hold: Array | int = 1  # for how many deployments the estimator wants a perturbation held
    signal: Callable[[Theta], Array] | None = None  # what the Jacobian is taken with respect to
    sample_gradients: Callable[[], Array] | None = None  # the performative gradient of every sample, (n, d)
    loss: Any = None  # mean loss of the batch
    gradient: Any = None  # what the optimiser follows
    learning_rate: Any = None  # where it is chosen during the run
    update_scale: Any = None  # what the optimiser's update is multiplied by


class Exchange(NamedTuple):
    """What the server gets in one turn of messages."""

    theta: Theta  # the model that was sent out
    reports: Values  # values of the entries by name, one row per report; unaccepted rows may hold anything
    weights: Array  # of the clients, (k,)
    trusted: Array  # the weights after the rule has compared the clients with its memory of them, (k,)
    accepted: Array  # (k,) bool
    key: Key
    rule: Rule
    weighed: tuple[str, ...] = ()  # the entries by which the rule has compared them

    def combine(self, name: str, centre: Any) -> Any:
        """The aggregate of an entry under the method's rule; ``centre`` is the previous aggregate."""
        if name not in self.weighed:
            return self.combine_values(self.reports[name], centre)
        return self.rule.aggregate_weighed(self.reports[name], self.trusted, self.accepted, centre)

    def combine_values(self, values: Any, centre: Any) -> Any:
        """The same of stacked ``values`` that are computed from entries."""
        return self.rule.aggregate_models(values, self.trusted, self.accepted, centre)


class Part:
    """Base class of all parts; see the module. Subclasses are frozen dataclasses.

    Attributes:
      combined: names of its entries that it combines under the method's rule (``Exchange.combine``). A rule that
        remembers clients compares them by these too.
      serves: fields of ``Step`` that it exists for. Where no later part reads any of them, the part is left out of the
        compiled program; () for a part that is always wanted.
      info: names of the numbers that it puts into ``step.info``.
      rereads: whether it reads the batch so often that it pays to have it in memory.
      arguments: fields that hold numbers which only enter arithmetic; a compiled program takes them as arguments.
      draws: whether ``combine`` uses the exchange's key; where no part of a chain does, none is made.
      sizes: the batch sizes that may occur, where the part says how many samples to draw (``samples_wanted``).
      exchanges: turns of messages that it wants in a round after the first, which deploy nothing.
    """

    combined: tuple[str, ...] = ()
    serves: tuple[str, ...] = ()
    info: tuple[str, ...] = ()
    rereads: bool = False
    draws: bool = True
    arguments: ClassVar[tuple[str, ...]] = ()
    sizes: tuple[int, ...] | None = None
    exchanges: int = 0

    def reads(self, problem: Problem | View | None) -> tuple[str, ...]:
        """The fields of ``Step`` that it reads and that other parts compute; None stands for a typical problem."""
        return ()

    def needs(self, problem: Problem | View | None) -> tuple[str, ...]:
        """What a problem must offer: keys of ``profl.methods.method.NEEDS``."""
        return ()

    def check_chain(self, parts: Sequence[Part], pooled: bool) -> None:
        """Raise an error where it does not fit into the chain."""

    def check(self, problem: Problem, parts: Sequence[Part], clients: int) -> None:
        """Raise an error for a problem that it cannot work with, in a chain of ``parts``, with so many ``clients``."""

    def settings(self) -> dict[str, Any]:
        """Its arguments as plain values by name."""
        return {field.name: plain(getattr(self, field.name)) for field in fields(self)} if is_dataclass(self) else {}

    def numbers(self) -> dict[str, Any]:
        """Its fields that a compiled program takes as arguments, so that another value compiles nothing."""
        return {name: value for name in self.arguments if isinstance(value := getattr(self, name), float | jax.Array)}

    def with_numbers(self, numbers: dict[str, Any]) -> Part:
        """The same part with other ``numbers``, which may be traced."""
        return unchecked(self, **numbers) if numbers else self

    # -- at a client ---------------------------------------------------------------------------------------------------

    def init(self, view: View, theta: Theta, batch: Batch) -> Any:
        """The state before the first step; only the shapes of ``batch`` matter."""
        return ()

    def deploy(self, view: View, state: Any, key: Key, theta: Theta) -> tuple[Theta, Any]:
        """The model that is deployed in place of ``theta``, and the next state."""
        return theta, state

    def update(self, view: View, state: Any, step: Step, key: Key) -> tuple[Step, Any]:
        """The step with what this part computes, and the next state."""
        return step, state

    def samples_wanted(self, state: Any) -> Array:
        """How many samples to draw in the next round; asked only of a part that states ``sizes``."""
        raise NotImplementedError(f"{type(self).__name__} states sizes: it must define samples_wanted(state)")

    def report(self, view: View, state: Any, theta: Theta) -> Report:
        """The entries that this part sends, ``profl.server.entries`` by name."""
        return {}

    def receive(self, view: View, state: Any, mail: Any) -> Any:
        """The state once the server's mail to this part has come."""
        return state

    def mail_like(self, view: View, state: Any) -> Any:
        """One client's mail of zeros, which states the shapes; () for none."""
        return ()

    def figures(self, view: View, state: Any, theta: Theta) -> dict[str, Array]:
        """Figures of the client at a record, by name."""
        return {}

    def final(self, view: View, state: Any, reports: Values) -> dict[str, Any]:
        """What ``run.final`` keeps of a client at the end, by name."""
        return {}

    # -- at the server -------------------------------------------------------------------------------------------------

    def open(self, view: View, theta: Theta) -> Any:
        """The server state before the first round."""
        return ()

    def combine(self, view: View, server: Any, exchange: Exchange) -> tuple[Any, Any]:
        """The next server state, and the mail: one row per report, () for none."""
        return server, ()

    # -- a part of theta that stays at the client ----------------------------------------------------------------------

    def local_model(self, state: Any, theta: Theta) -> Theta:
        """The client's own model, made from the one that the server sent."""
        return theta

    def reported_model(self, state: Any, theta: Theta) -> Theta:
        """The model that leaves the client in place of its own."""
        return theta

    def judged_model(self, theta: Theta) -> Any:
        """What of a reported model must lie in the model space."""
        return theta

    def combined_model(self, server: Any, theta: Theta, sent: Theta) -> Theta:
        """The model that the server goes on with, from what the rule returned and the part's new server state."""
        return theta


def unchecked(value: T, **changes: Any) -> T:
    """A frozen dataclass with other fields, which may be traced and so cannot be checked."""
    new = copy.copy(value)
    for name, field in changes.items():
        object.__setattr__(new, name, field)
    return new


def shape_of_f(view: View, batch: Batch) -> Any:
    """The shape of f_hat, from the shapes of a batch."""
    n = jax.tree.leaves(batch)[0].shape[0]
    return jax.eval_shape(view.family.estimate, batch, jax.ShapeDtypeStruct((n,), jax.numpy.result_type(float)))


def plain(value: Any) -> Any:
    """A value as ``settings`` shows it: plain values as they are, an object by its name and its non-default fields.

    >>> from profl.server.rules import TrimmedMean
    >>> plain(None), plain(0.1), plain(TrimmedMean()), plain(TrimmedMean(0.3))
    (None, 0.1, 'TrimmedMean', 'TrimmedMean(share=0.3)')
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        pairs = {field.name: (getattr(value, field.name), field.default) for field in fields(value)}
        differing = [f"{name}={plain(own)}" for name, (own, default) in pairs.items() if own != default]
        return type(value).__name__ + (f"({', '.join(differing)})" if differing else "")
    return getattr(value, "__qualname__", type(value).__qualname__)
