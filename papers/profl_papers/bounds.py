"""The convergence bound beside what Figures 3a-c measured: does it hold, and does it point the right way?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from profl.cases import pricing
from profl.methods import profl
from profl.run.compiled.simulate import simulate
from profl.theory import Constants, bound, estimate

H = 20
"""The window where a figure does not vary it: the paper's own, because the bound needs one and the default has none."""
ETA, N, ROUNDS = 0.01, 500, 400
"""Of the run that the constants are estimated from: the figures' own rate and samples, long enough to arrive."""


def beside_the_bound(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Constants estimated on pricing, and per setting of Figures 3a-c the excess measured and the bound."""
    found = constants()
    rows = []
    for result in results:
        if result["item"] in ("fig3a", "fig3b", "fig3c"):
            rows += [row for entry in result["rows"] if (row := _row(found, result, entry))]
    return {"constants": asdict(found), "rows": rows}


def constants() -> Constants:
    """From one seed of ProFL on pricing, one deployment per round so that every model deployed is recorded."""
    case = pricing()
    run = simulate(case, profl(ETA, filter="none"), rounds=ROUNDS, local_steps=1, samples=N, seeds=[0], progress=False)
    return estimate(case, run, window=H)


def _row(found: Constants, result: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any] | None:
    settings = result["settings"]
    varied = {"fig3a": "n", "fig3b": "eta"}.get(result["item"], "H")
    if varied == "H":
        if entry["demand"] != "linear" or "H = " not in entry["Jacobian"]:
            return None
        value = int(entry["Jacobian"].split("H = ")[1])
    else:
        value = entry[varied]
    fixed = {"eta": settings["eta"], "n": settings["n"], "H": H, "R": settings["R"]}
    call = {**fixed, varied: value, "T": settings["rounds"] * settings["R"]}
    return {
        "figure": result["item"],
        "varied": varied,
        "value": value,
        "measured": entry["excess"],
        "bound": bound(found, **call),
        "as printed": bound(found, **call, paper=True),
    }
