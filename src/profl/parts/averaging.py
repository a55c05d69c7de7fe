"""The server's model: the reported models under an aggregation rule (paper, Algorithm 1, line 17)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from profl.parts.part import Part
from profl.problem.problem import View
from profl.server import entries, rules
from profl.server.entries import Report
from profl.server.rule_base import Rule, open_memory, weigh
from profl.typing import Array, Theta


@dataclass(frozen=True)
class Averaging(Part):
    """Combines the models by ``aggregate``, a name of ``profl.server.rules.RULES`` or a rule; Algorithm 1, line 17.

    The entries of other parts are combined by the same rule and weights.

    >>> Averaging("krumm")
    Traceback (most recent call last):
        ...
    profl.checks.InputError: unknown aggregation rule 'krumm'; did you mean 'krum'? There are: mean, median, ...
    """

    aggregate: Any = "mean"

    def __post_init__(self) -> None:
        rules.get(self.aggregate)

    @property
    def rule(self) -> Rule:
        return rules.get(self.aggregate)

    def report(self, view: View, state: Any, theta: Theta) -> Report:
        return {"theta": entries.model(theta)}

    def open(self, view: View, theta: Theta) -> Any:
        """The rule's memory of the clients; () for a rule without memory."""
        return open_memory(self.rule, view, theta)

    def weigh(
        self, view: View, memory: Any, models: Theta, weights: Array, accepted: Array, sent: Theta
    ) -> tuple[Array, Any]:
        """The weights (k,) after the rule has compared the clients with its memory of them, and its next memory."""
        return weigh(self.rule, memory, view, models, weights, accepted, sent)
