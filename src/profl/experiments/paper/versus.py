"""PFL and ProFL on one case: what Figures 4, 5 and 6 have in common."""

from __future__ import annotations

from typing import Any, NamedTuple

from profl.algorithms import pfl, profl
from profl.experiments.claims import Claim, at_least, at_most
from profl.experiments.paper.item import Trial, gap, known, line, panel, spread, tail
from profl.problem.problem import Problem
from profl.results.record import Run


class Pair(NamedTuple):
    problem: Problem
    pfl: Run
    profl: Run

    def rows(self, **which: Any) -> list[dict[str, Any]]:
        """One row per method: where it ended, and where the optimum and the stable point are."""
        rows = []
        for run, label in ((self.pfl, "PFL"), (self.profl, "ProFL")):
            ended = {"excess": tail(run), "sd": spread(run), "stable point's excess": gap(self.problem)}
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
            at_most(f"{name}: ProFL from the optimum's accuracy ({best:.2f} %)", abs(found - best), 0.5, " points"),
            at_most(
                f"{name}: PFL from the stable point's accuracy ({stable:.2f} %)", abs(stuck - stable), 0.5, " points"
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


def versus(trial: Trial, problem: Problem, **changes: Any) -> Pair:
    """Both methods with the item's learning rates, on the same seeds and budget."""
    eta = trial.settings["eta"]
    rates = eta if isinstance(eta, dict) else {"PFL": eta, "ProFL": eta}
    method = profl(rates["ProFL"], filter=trial.settings["filter"])
    return Pair(problem, *(trial.simulate(problem, each, **changes) for each in (pfl(rates["PFL"]), method)))
