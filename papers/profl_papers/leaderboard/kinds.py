"""What sealed problems are drawn from: for each kind a program's shape, then problems of it that differ in numbers.

A kind is drawn in two steps. ``shape(rng)`` fixes what a compiled program belongs to (parameters, clients, samples, the
family) and returns a function ``draw(rng) -> (problem, words)``, whose problems share that program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from profl.cases.group_pricing import group_pricing
from profl.cases.housing import SellingPrice, housing
from profl.cases.strategic import strategic
from profl.problem.families import LinearGaussian
from profl.problem.problem import Problem
from profl_papers.drawn.draw import LINKS, Shape, draw_of_shape, draw_weights

CLIENTS, SAMPLES = (5, 10), (50, 100, 200, 500)
"""From how many clients to how many, and the samples that one of them draws for a deployment."""

Draw = Callable[[np.random.Generator], tuple[Problem, str]]


class Layout(NamedTuple):
    """What all problems of a kind have in common."""

    clients: int
    samples: int


class Kind(NamedTuple):
    """``shape(rng, layout)`` makes the function that draws a problem, of one of ``reactions`` after the other."""

    shape: Callable[[np.random.Generator, Layout], Callable[[str], Draw]]
    reactions: tuple[str, ...]


def draw_layout(rng: np.random.Generator) -> Layout:
    return Layout(int(rng.integers(CLIENTS[0], CLIENTS[1] + 1)), int(rng.choice(SAMPLES)))


def prices(rng: np.random.Generator, layout: Layout, counts: bool = False) -> Callable[[str], Draw]:
    """Prices of 2 to 5 goods; the noise is normal, heavy-tailed or with zeros, or sales are counted."""
    shape = Shape("revenue", counts, False, int(rng.integers(2, 6)), *layout)

    def of_link(link: str) -> Draw:
        def draw(rng: np.random.Generator) -> tuple[Problem, str]:
            made = draw_of_shape(rng, shape, "prices", link if link in LINKS else None)
            return made.problem, made.text.split(" | ")[1]

        return draw

    return of_link


def counts(rng: np.random.Generator, layout: Layout) -> Callable[[str], Draw]:
    """Prices of goods whose sales are counted: Poisson, negative binomial, or all or nothing."""
    return prices(rng, layout, counts=True)


def listings(rng: np.random.Generator, layout: Layout) -> Callable[[str], Draw]:
    """``housing`` with drawn sensitivities, base prices of every district and noise."""
    noise = float(rng.uniform(0.5, 3.0))

    def draw(rng: np.random.Generator) -> tuple[Problem, str]:
        sensitivity, different = -rng.uniform(0.8, 2.5), rng.uniform(0.0, 0.8)
        weights, weighing = draw_weights(rng, layout.clients)
        case = housing(
            layout.clients, different * -sensitivity, weights, _seed(rng), sensitivity=sensitivity, spread="uniform"
        )
        base = rng.uniform(0.5, 4.0) * (1 + 0.2 * rng.normal(size=(layout.clients, 1)))
        problem = replace(
            case,
            clients={**case.clients, "a": base},
            reaction=SellingPrice(noise=noise),
            family=LinearGaussian(sd=noise),
        )
        return problem, f"sensitivity {sensitivity:.2f} +- {different:.0%}, noise {noise:.2f}, {weighing}"

    return lambda _: draw


def groups(rng: np.random.Generator, layout: Layout) -> Callable[[str], Draw]:
    """``group_pricing``: two groups of customers, one of which spends much on a good of its own.

    Next to no table that is drawn entry by entry has a gap: the highest prices are optimum and stable point at once.
    """

    def draw(rng: np.random.Generator) -> tuple[Problem, str]:
        demand, different = rng.uniform(0.0, 1.5, (2, 2)), rng.uniform(0.0, 0.6)
        np.fill_diagonal(demand, [rng.uniform(4.0, 10.0), rng.uniform(0.5, 4.0)])
        weights, weighing = draw_weights(rng, layout.clients)
        problem = group_pricing(layout.clients, different, weights, _seed(rng), demand=demand, spread="uniform")
        return problem, f"demand {np.round(demand, 1).tolist()}, +- {different:.0%}, {weighing}"

    return lambda _: draw


def gaming(rng: np.random.Generator, layout: Layout) -> Callable[[str], Draw]:
    """``strategic``: 2 to 4 features; all respond, or only those of one class."""
    features, respond = int(rng.integers(2, 5)), str(rng.choice(["all", "positive"]))

    def draw(rng: np.random.Generator) -> tuple[Problem, str]:
        sensitivity, different = rng.uniform(0.4, 1.6), rng.uniform(0.0, 0.8)
        weights, weighing = draw_weights(rng, layout.clients)
        problem = strategic(
            layout.clients,
            different * sensitivity,
            weights,
            _seed(rng),
            features=features,
            sensitivity=sensitivity,
            respond=respond,
            spread="uniform",
        )
        return problem, f"{respond} respond, sensitivity {sensitivity:.2f} +- {different:.0%}, {weighing}"

    return lambda _: draw


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**31))


KINDS: dict[str, Kind] = {
    "prices": Kind(prices, LINKS),
    "counted sales": Kind(counts, ("any link", "any link")),
    "house prices": Kind(listings, ("linear", "linear")),
    "group shares": Kind(groups, ("budgets", "budgets")),
    "strategic": Kind(gaming, ("best response", "best response")),
}
"""The kinds of problems, each with how many are drawn: one for every reaction that is named."""
