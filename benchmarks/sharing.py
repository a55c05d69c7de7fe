"""Jacobians shared among clients that react alike (Figure 2b): error, excess, and who is put with whom; and that
sharing does no harm where weights are unequal and clients differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from profl.cases import pricing
from profl.methods import profl
from profl.problem.problem import Problem
from profl.run.compiled.simulate import simulate
from profl_papers.claims import Part, at_least, at_most
from profl_papers.groups import three_groups

SAMPLES = 60
"""Few, as in the paper: with many a client's own estimate is good enough."""
LESS_ERROR = 3
"""How many times smaller sharing makes the error: 33 clients share, and the mean of 33 errors is 5.7 times smaller."""
MOST_SEEDS, RIGHT_GROUP = 0.9, 0.95
"""Shares of the seeds in which sharing ends lower, and of the clients put with their own kind."""
HEAVY, NO_WORSE = 0.6, 1.05
"""The weight of one client of ten, and the excess with sharing over that without, at most."""
WAYS = ("auto", "shrink")


def sharing(settings: dict[str, Any]) -> Part:
    """100 clients with 60 samples each, three groups."""
    case = three_groups()
    gamma = np.asarray(case.clients["gamma"])
    methods = [profl(filter="none", share=share) for share in (None, "auto")]
    local, shared = (simulate(case, method, samples=SAMPLES, **settings) for method in methods)
    assert shared.jacobians is not None
    exact = -gamma[:, None, None] * np.eye(case.optimum.size)
    own_error, shared_error = (
        np.sqrt(np.mean((jacobians - exact) ** 2, axis=(1, 2, 3)))
        for jacobians in (shared.jacobians.own, shared.jacobians.shared)
    )
    truth = np.unique(gamma, return_inverse=True)[1]
    right = [agreement(truth, groups) for groups in shared.jacobians.groups]
    wins = np.mean(shared.tail_excess() < local.tail_excess())
    ratio = (own_error / shared_error).mean()
    rows: list[dict[str, Any]] = [
        {"part": "sharing", "Jacobian": name, "error": error.mean(), "excess": run.tail_excess().mean()}
        for name, error, run in (("local", own_error, local), ("shared", shared_error, shared))
    ]
    return Part(
        rows,
        [
            at_least("sharing: local error over shared error of the Jacobian", ratio, LESS_ERROR),
            at_least("sharing: share of seeds with lower tail excess", wins, MOST_SEEDS),
            at_least("sharing: clients put in the right group", np.mean(right), RIGHT_GROUP),
        ],
    )


def no_harm(settings: dict[str, Any]) -> Part:
    """Ten clients: one has most of the weight and does not react, or reacts most; or all weigh alike and differ."""
    rows, claims = [], []
    for name, case in unequal().items():
        methods = [profl(filter="none", share=share) for share in (None, *WAYS)]
        runs = [simulate(case, method, samples=SAMPLES, **settings) for method in methods]
        alone, *others = (run.tail_excess().mean() for run in runs)
        for way, excess in zip(WAYS, others, strict=True):
            rows.append({"part": "no harm", "clients": name, "share": way, "excess": excess, "without": alone})
            claims.append(at_most(f"sharing, {way}, {name}: excess over that without", excess / alone, NO_WORSE))
    return Part(rows, claims)


def unequal() -> dict[str, Problem]:
    """Name -> pricing with a mean sensitivity of 1.5, weighted.

    >>> {name: round(float(case.weights @ case.clients["gamma"]), 6) for name, case in unequal().items()}
    {'all alike but one idle': 1.5, 'all alike but one eager': 1.5, 'spread': 1.5}
    """
    clients, mean = 10, 1.5
    alike, equal = np.ones(clients), np.full(clients, 1 / clients)
    heavy = np.append(np.full(clients - 1, (1 - HEAVY) / (clients - 1)), HEAVY)
    worlds = {
        "all alike but one idle": (np.append(alike[1:], 0.0), heavy),
        "all alike but one eager": (np.append(alike[1:], 2.5), heavy),
        "spread": (np.linspace(0.5, 1.5, clients), equal),
    }

    def made(gamma: np.ndarray, weights: np.ndarray) -> Problem:
        case = pricing(clients=clients, heterogeneity=0, weights=weights)
        return replace(case, clients={**case.clients, "gamma": mean * gamma / (weights @ gamma)})

    return {name: made(*world) for name, world in worlds.items()}


def agreement(truth: np.ndarray, groups: np.ndarray) -> float:
    """Share of clients in the cluster that holds most of their own group, each cluster standing for one group.

    >>> agreement(np.array([0, 0, 1, 1]), np.array([5, 5, 7, 5]))
    0.75
    """
    clusters = np.unique(groups[groups >= 0])
    table = np.array([[np.sum((truth == t) & (groups == g)) for g in clusters] for t in np.unique(truth)])
    together = 0
    while table.size and table.max() > 0:
        row, column = np.unravel_index(np.argmax(table), table.shape)
        together += int(table[row, column])
        table[row], table[:, column] = 0, 0
    return together / truth.size
