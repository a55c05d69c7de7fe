"""The server's model: the reported models under an aggregation rule (paper, Algorithm 1, line 17)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from profl import trees
from profl.parts.part import Part
from profl.problem.problem import View
from profl.server import entries, rules
from profl.server.entries import Report, Values
from profl.server.rule_base import Rule, open_memory, weigh
from profl.typing import Array, Theta


@dataclass(frozen=True)
class Averaging(Part):
    """Combines the models by ``aggregate``, a name of ``profl.server.rules.RULES`` or a rule; Algorithm 1, line 17.

    A name may state the share of hostile clients to withstand, "history:0.3". The entries of other parts are combined
    by the same rule and weights.

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

    def rule_of(self, name: str) -> Rule:
        """The rule that weighs clients by their entry of that name."""
        return self.rule if name == "theta" else self.rule.of_entries

    def report(self, view: View, state: Any, theta: Theta) -> Report:
        return {"theta": entries.model(theta)}

    def open_for(self, view: View, theta: Theta, others: Sequence[str]) -> dict[str, Any]:
        """The rule's memory of the clients, for the models and each of the ``others``; empty where it has none."""
        if not self.rule.has_memory:
            return {}
        memory = self.rule.of_entries.open(view.client_count, 0)
        return {"theta": open_memory(self.rule, view, theta), **dict.fromkeys(others, memory)}

    def weigh(
        self, view: View, memory: dict[str, Any], reports: Values, weights: Array, accepted: Array, sent: Theta
    ) -> tuple[Array, dict[str, Any]]:
        """The weights (k,) after the rule has compared the clients, entry by entry, with its memory of them; the next
        memory."""
        for name, old in sorted(memory.items()):
            centre = sent if name == "theta" else trees.take(reports[name], 0)
            weights, new = weigh(self.rule_of(name), old, view, reports[name], weights, accepted, centre)
            memory = {**memory, name: new}
        return weights, memory

    def distrusted(self, memory: dict[str, Any]) -> dict[str, Any]:
        """The round from which on each client is distrusted, -1 where it is not, by entry and reason."""
        found: dict[str, Any] = {}
        for name, own in memory.items():
            what = "models" if name == "theta" else name.replace("_", " ")
            found |= {f"{what} {why}": since for why, since in self.rule_of(name).distrusted(own).items()}
        return found
