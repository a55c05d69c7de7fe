"""Part of ``analyst``: prm on orange_juice with 60 weeks of history, and with history that is wrong.

The weeks are simulated: log prices vary around the present ones, by store and by week, and good weeks have higher
prices. A store's elasticities in biased history are 30 % smaller or larger than they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import profl
from benchmarks.bench import Row
from profl_papers.claims import Claim, Part, at_most

STORES, WEEKS, SAMPLES, ROUNDS = 10, 60, 26, 30
PRICE_SD = 0.1
"""Of a log price, by store and by week each; in the real weeks it is larger."""
WEEK_SD = 0.2
"""Of log ounces from week to week, in all stores alike."""
BIASES = {"right": 1.0, "30 % too small": 0.7, "30 % too large": 1.3}
"""Kind of history -> its elasticities over the true ones."""
CURIOSITY = {"usual": 16.0, "low": 2.0}
"""What exploring may cost, in multiples of the expected excess: as ever, and where history has shown most of it."""
LATER, EARLY = 15, 5
"""Deployments from nothing, and those with history that are to come as near."""


def weeks(case: profl.Problem, seed: int, times: float) -> profl.methods.PastDeployments:
    """Past deployments in which elasticities seem to be ``times`` what they are."""
    rng, own = np.random.default_rng(seed), case.clients
    elasticity, sd = np.asarray(own["elasticity"]), np.asarray(own["sd"])
    stores, brands = elasticity.shape
    store, week = np.divmod(np.arange(stores * WEEKS), WEEKS)
    shock = rng.normal(size=(WEEKS, brands))
    price = PRICE_SD * (shock[week] + rng.normal(size=(store.size, brands)))
    noise = sd[store] / np.sqrt(SAMPLES) * rng.normal(size=price.shape)
    ounces = np.asarray(own["level"])[store] + times * elasticity[store] * price + WEEK_SD * shock[week] + noise
    return profl.methods.past_deployments(case, store, week, price, f=ounces)


def history(seeds: int, quick: bool) -> Part:
    """Excess and deployed regret with and without history, over seeds from 0 on."""
    case = profl.cases.orange_juice(STORES)
    settings: dict[str, Any] = {
        "rounds": 6 if quick else ROUNDS,
        "local_steps": 1,
        "samples": SAMPLES,
        "progress": False,
    }
    later, last = min(LATER, settings["rounds"]), settings["rounds"]
    gap = case.risk(case.stable) - case.risk(case.optimum)

    def row(name: str, curiosity: str, runs: Sequence[profl.Run]) -> Row:
        excess = np.concatenate([run.excess for run in runs]) / gap
        regret = np.concatenate([run.deployed_regret[:, -1] for run in runs]) / gap
        figures = {f"after {n}": float(excess[:, n].mean()) for n in (EARLY, later, last)}
        return {"part": "history", "history": name, "curiosity": curiosity, **figures, "regret": float(regret.mean())}

    rows = [row("none", "usual", [profl.simulate(case, profl.prm(), seeds=range(seeds), **settings)])]
    for curiosity, value in CURIOSITY.items():
        for name, times in ({"right": 1.0} if quick else BIASES).items():
            runs = [
                profl.simulate(
                    case, profl.prm(history=weeks(case, seed, times), curiosity=value), seeds=[seed], **settings
                )
                for seed in range(seeds)
            ]
            rows.append(row(name, curiosity, runs))
    return Part(rows, [] if quick else history_claims(rows, later, last))


def history_claims(rows: Sequence[Row], later: int, last: int) -> list[Claim]:
    """What history must bring, and what it must not cost."""
    none = rows[0]
    found = []
    for row in rows[1:]:
        what = f"history {row['history']}, curiosity {row['curiosity']}"
        if row["history"] == "right":
            nearer = f"{what}: left after {EARLY}, over what is left after {later} from nothing"
            found.append(at_most(nearer, row[f"after {EARLY}"] / none[f"after {later}"], 1.0))
            found.append(
                at_most(f"{what}: deployed regret, over that from nothing", row["regret"] / none["regret"], 0.5)
            )
        if row["curiosity"] == "usual":  # who explores little learns little, and was told so
            worse = f"{what}: left after {last}, over that from nothing"
            found.append(at_most(worse, row[f"after {last}"] / none[f"after {last}"], 1.1))
    return found
