"""The paper's items once more with the algorithm as printed: ``profl.literal`` at the paper's own parameters.

Each is the item of its name with other settings: eta, R, H, n and eps are those of the paper's parameter table, the
filter is Algorithm 2 with its constants, and nothing that profl adds is there. What the paper does not state is chosen
once for all of them: as many rounds as it takes eta R rounds to reach 3 (pricing then has e^-9 of its way left to go),
less where that would take more than some minutes, which ``why`` says.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from profl_papers.claims import at_least
from profl_papers.item import Found, Item
from profl_papers.measures import known, line, panel, standard_deviation, tail
from profl_papers.profl2024 import ITEMS
from profl_papers.profl2024.fig2b import MOST_SEEDS
from profl_papers.profl2024.versus import NEAR, STUCK, Pair, versus
from profl_papers.trial import Trial

WORK, SUFFIX = "profl2024-printed", "-printed"
PRICING = {"case": "pricing", "clients": 10, "heterogeneity": 0.5}
PAIR: dict[str, Any] = {"method": ("pfl", "literal"), "eta": (0.005, 0.001), "R": 5, "H": 1, "filter": "paper"}


def share_in_clusters(trial: Trial) -> Found:
    """Figure 2b: Jacobians of each client alone, and the plain means of three clusters at every local step."""
    case, s = trial.case(), trial.settings
    every, steps = s["averaged every"][1], s["rounds"][1]
    alone = trial.method("profl", C=None, **{"averaged every": None})
    local = trial.simulate(case, alone, R=every, rounds=s["rounds"][0])
    method = trial.method("profl", C=s["C"][1], **{"averaged every": every})
    shared = trial.simulate(case, method, R=1, rounds=steps)
    rows = [
        {"Jacobian": name, "excess": tail(ended), "sd": standard_deviation(ended)}
        for name, ended in (("local", local), ("shared", shared))
    ]
    wins = float((shared.tail_excess() < local.tail_excess()).mean())
    claims = [
        at_least("local excess over shared excess", tail(local) / tail(shared), 1, " times", "lower loss when shared"),
        at_least("share of seeds in which sharing ends lower", wins, MOST_SEEDS),
    ]
    panels = [panel("as printed", [line(local, "local"), line(shared, "shared")], known(local))]
    return Found(rows, claims, panels)


def windows_exchanged(trial: Trial) -> Found:
    """Figure 4b with the row's R and H as they stand and exchanged, and with base data alike and different."""
    s = trial.settings
    rows = list(zip(s["R"], s["H"], s["rounds"], strict=True))
    return readings(
        {
            f"R = {R}, H = {H}, {BASE[spread]}": versus(
                trial, trial.case(base_spread=spread), {"H": H}, R=R, rounds=rounds
            )
            for spread in s["base_spread"]
            for R, H, rounds in rows
        }
    )


def base_data(trial: Trial) -> Found:
    """Figure 5a with base data that are alike, and with different ones."""
    pairs = {BASE[spread]: versus(trial, trial.case(base_spread=spread)) for spread in trial.settings["base_spread"]}
    return Found(
        [row for name, pair in pairs.items() for row in pair.rows(reading=name)],
        [claim for name, pair in pairs.items() for claim in pair.risk_claims(f"group pricing, {name}", NEAR, STUCK)],
        [pair.risk_panel(name) for name, pair in pairs.items()],
    )


def equal_and_different(trial: Trial) -> Found:
    """Figure 4a with equal clients, and with different ones."""
    spreads = trial.settings["heterogeneity"]
    return readings({f"heterogeneity {h}": versus(trial, trial.case(heterogeneity=h)) for h in spreads})


def readings(pairs: dict[str, Pair]) -> Found:
    """What accuracies show under each reading of the text."""
    return Found(
        [row for name, pair in pairs.items() for row in pair.rows(reading=name)],
        [claim for name, pair in pairs.items() for claim in pair.accuracy_claims(name)],
        [pair.accuracy_panel(name) for name, pair in pairs.items()],
    )


def printed(item: Item, settings: dict[str, Any], why: str, **other: Any) -> Item:
    """The item as printed."""
    return replace(
        item,
        name=item.name + SUFFIX,
        work=WORK,
        citation=f"{item.citation}: as printed",
        settings=settings,
        why=why,
        changed="",
        on_request=True,
        **{"finding": "", **other},
    )


BASE = {0: "base data alike", 0.2: "base data 20 % apart"}
ROUNDS = "The paper does not state the number of rounds."
_ITEMS = (
    printed(
        ITEMS["table1"],
        {"case": "housing", "clients": 10, "heterogeneity": (0, 0.25, 0.5), "method": ("literal_pg", "literal")}
        | {"eta": 0.01, "R": 5, "H": 1, "n": 500, "rounds": 200, "filter": "paper"},
        ROUNDS + " With H = 1 df/dtheta is one difference quotient.",
    ),
    printed(
        ITEMS["fig2a"],
        PRICING
        | {"eps": (0, 0.1, 0.2, 0.4), "source": "blob", "distance": 10, "method": "literal", "eta": 0.001, "R": 5}
        | {"H": 25, "n": 500, "rounds": 600, "filter": ("paper", "none")},
        ROUNDS + " Neither the mean nor the spread of its junk is stated; here it lies 10 standard deviations away.",
    ),
    printed(
        ITEMS["fig2b"],
        {"case": "three_groups", "clients": 100, "method": "literal", "eta": 0.0001, "R": (3, 1), "H": 10, "n": 60}
        | {"C": (None, 3), "averaged every": (None, 3), "rounds": (2000, 6000), "filter": "paper"},
        ROUNDS
        + " These are a fifth of eta R rounds = 3: more would take half an hour. A round of the shared run is one "
        "local step, so R = 1 there and models are averaged every 3. C is the number of groups that there are.",
        run=share_in_clusters,
        short={"rounds": (4, 12)},
        finding="Sharing at every step in given clusters, as printed, ends no lower than not sharing. The server's "
        "mean of models averages the steps J_i^T u_i; where clients lose alike (u_i = u) it is the same whether J_i or "
        "means of clusters stand in it. What sharing would average out is averaged out anyhow, and k-means divides "
        "clients by the noise of J_i as well.",
    ),
    printed(
        ITEMS["fig2c"],
        PRICING
        | {"reaction": ("linear", "exponential"), "method": "literal", "eta": 0.001, "R": 5, "H": 100, "n": 1000}
        | {"min n": 50, "tolerance": (None, 0.05, 0.1), "rounds": 600, "filter": "paper"},
        ROUNDS + " n follows the paper's bound, between 50 and 1000; the tolerance is its Phi.",
    ),
    printed(
        ITEMS["fig3a"],
        PRICING
        | {"method": "literal", "eta": 0.001, "R": 5, "H": 20, "n": (50, 500, 5000), "rounds": 600, "filter": "paper"},
        ROUNDS,
    ),
    printed(
        ITEMS["fig3b"],
        PRICING
        | {"reaction": "linear", "method": "literal", "eta": (0.03, 0.01, 0.001), "R": 5, "H": 20, "n": 2500}
        | {"rounds": 600, "filter": "paper"},
        ROUNDS,
    ),
    printed(
        ITEMS["fig3c"],
        PRICING
        | {
            "reaction": ("linear", "exponential"),
            "method": "literal",
            "eta": 0.001,
            "R": 5,
            "H": (4, 20, 100),
            "n": 500,
        }
        | {"rounds": 600, "filter": "paper"},
        ROUNDS + " The pricing case is linear, the text speaks of curved reactions: both are run.",
    ),
    printed(
        ITEMS["fig4a"],
        {"case": "strategic", "clients": 10, "heterogeneity": (0, 0.5), "method": ("pfl", "literal"), "eta": 0.03}
        | {"R": 10, "H": 500, "n": 500, "rounds": 200, "filter": "paper"},
        ROUNDS + " The text says heterogeneous clients, the caption equal distributions: both are run.",
        run=equal_and_different,
    ),
    printed(
        ITEMS["fig4b"],
        {"case": "strategic", "clients": 10, "heterogeneity": 0.5, "base_spread": tuple(BASE), "eta": 0.03}
        | {
            "method": ("pfl", "literal"),
            "R": (500, 1),
            "H": (1, 500),
            "n": 500,
            "rounds": (4, 2000),
            "filter": "paper",
        },
        ROUNDS + " R = 500 and H = 1 look exchanged: both readings are run, for 2,000 deployments each. The caption "
        "says different distributions: sensitivities that differ, and base data that differ as well.",
        run=windows_exchanged,
        short={"rounds": (1, 20), "R": (5, 1), "H": (1, 5)},
    ),
    printed(
        ITEMS["fig4c"],
        {"case": "credit", "clients": 10, "heterogeneity": 0.1, "sensitivity": 6.0, "method": ("pfl", "literal")}
        | {"eta": 0.01, "R": 5, "H": 1, "n": 5812, "rounds": 200, "filter": "paper"},
        ROUNDS + " Neither are sensitivities and how rows were prepared: those of the item are used.",
    ),
    printed(
        ITEMS["fig4d"],
        {
            "case": "adult",
            "clients": 10,
            "heterogeneity": 0.1,
            "sensitivity": (6.0, 3.0),
            "respond": ("all", "positive"),
        }
        | {"method": ("pfl", "literal"), "eta": 0.03, "R": 5, "H": 1, "n": 2368, "rounds": 200, "filter": "paper"},
        ROUNDS + " Neither are sensitivities and how rows were prepared: those of the item are used.",
    ),
    printed(
        ITEMS["fig5a"],
        {"case": "group_pricing", "clients": 10, "heterogeneity": 0.1, "base_spread": tuple(BASE), "n": 500}
        | {"rounds": 600, **PAIR},
        ROUNDS + " Demands mu_ik carry the retailer's index: both readings are run.",
        run=base_data,
    ),
    printed(
        ITEMS["fig5b"], {"case": "retail", "clients": 10, "heterogeneity": 0.5, "n": 500, "rounds": 600, **PAIR}, ROUNDS
    ),
    printed(
        ITEMS["fig6a"],
        {"case": "housing", "clients": 10, "heterogeneity": (0.1, 0.3, 1.0), "n": 500, "rounds": 600, **PAIR},
        ROUNDS + " The 0.2, 0.5 and 1 in the column H can only be heterogeneities; H = 1 as in the next row.",
    ),
    printed(
        ITEMS["fig6b"],
        {"case": "housing", "clients": 10, "heterogeneity": 0.5, "n": (5, 50, 500), "rounds": 600, **PAIR},
        ROUNDS,
    ),
)
PRINTED: dict[str, Item] = {item.name: item for item in _ITEMS}
"""The items as printed, by name."""
