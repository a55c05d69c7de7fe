"""PFL and ProFL on one case: what Figures 4, 5 and 6 have in common."""

from __future__ import annotations

from typing import Any, NamedTuple

from profl.problem.problem import Problem
from profl.results.record import Run
from profl_papers.claims import Claim, at_least, at_most
from profl_papers.measures import gap, known, line, panel, standard_deviation, tail
from profl_papers.trial import Trial

POINTS = 0.5
"""How far a method's accuracy may end from that of its point, in percent: a twelfth of the six that the paper's two
methods lie apart on Adult."""
NEAR, STUCK = 0.05, 0.95
"""Contribution dynamics: of the gap between optimum and stable point, ProFL leaves 5 % at most, PFL 95 % at least."""
AT_THE_OPTIMUM, AWAY = 0.01, 0.5
"""Housing: ProFL within 1 % of the gap; PFL, which ends at the stable point or past it, beyond half."""


class Pair(NamedTuple):
    problem: Problem
    pfl: Run
    profl: Run

    def rows(self, **which: Any) -> list[dict[str, Any]]:
        """One row per method: where it ended, and where the optimum and the stable point are."""
        rows = []
        for run, label in ((self.pfl, "PFL"), (self.profl, "ProFL")):
            ended = {"excess": tail(run), "sd": standard_deviation(run), "stable point's excess": gap(self.problem)}
            if run.accuracy is not None:
                ended |= {"accuracy": 100 * tail(run, "accuracy")}
                ended |= {"optimum's": 100 * self.at("optimum"), "stable point's": 100 * self.at("stable")}
            rows.append({**which, "method": label, **ended})
        return rows

    def at(self, point: str) -> float:
        """Accuracy at the optimum or at the stable point."""
        return self.problem.accuracy(getattr(self.problem, point))

    def risk_panel(self, title: str, **more: Any) -> dict[str, Any]:
        return panel(title, [line(self.pfl, "PFL"), line(self.profl, "ProFL")], known(self.profl), **more)

    def accuracy_panel(self, title: str) -> dict[str, Any]:
        lines = [line(self.pfl, "PFL", "accuracy"), line(self.profl, "ProFL", "accuracy")]
        levels = {"optimum (PO)": self.at("optimum"), "stable point (PS)": self.at("stable")}
        return panel(title, lines, levels, "accuracy on the data the model brings in")

    def accuracy_claims(self, name: str, paper: str = "") -> list[Claim]:
        """ProFL above PFL, and each within half a point of its own point, in percent."""
        found, stuck = 100 * tail(self.profl, "accuracy"), 100 * tail(self.pfl, "accuracy")
        best, stable = 100 * self.at("optimum"), 100 * self.at("stable")
        return [
            at_least(f"{name}: ProFL's accuracy above PFL's", found - stuck, 0, " points", paper),
            at_most(f"{name}: ProFL from the optimum's accuracy ({best:.2f} %)", abs(found - best), POINTS, " points"),
            at_most(
                f"{name}: PFL from the stable point's accuracy ({stable:.2f} %)", abs(stuck - stable), POINTS, " points"
            ),
        ]

    def risk_claims(self, name: str, near: float, stuck: float) -> list[Claim]:
        """ProFL's excess as a share of the stable point's is at most ``near``, PFL's at least ``stuck``."""
        whole = gap(self.problem)
        share = "share of the gap between optimum and stable point"
        return [
            at_most(f"{name}: ProFL's excess, as a {share}", tail(self.profl) / whole, near),
            at_least(f"{name}: PFL's excess, as a {share}", tail(self.pfl) / whole, stuck),
        ]


def versus(trial: Trial, problem: Problem, made: dict[str, Any] | None = None, **chosen: Any) -> Pair:
    """Both methods with the item's learning rate, or each with its own of two, on the same seeds and budget.

    ``made`` are settings of the methods, ``chosen`` those of the runs.
    """
    eta = trial.settings["eta"]
    rates = zip(("pfl", "profl"), eta if isinstance(eta, tuple) else (eta, eta), strict=True)
    methods = (trial.method(name, eta=rate, **(made or {})) for name, rate in rates)
    return Pair(problem, *(trial.simulate(problem, method, **chosen) for method in methods))
