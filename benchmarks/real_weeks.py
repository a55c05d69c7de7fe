"""Part of ``analyst``: real weeks of orange juice as history, and a world that was fitted to all of them.

    log ounces = level + elasticity (log price - log of the chain's mean price) + rivals' mean log price, deal, feature

by least squares for every store and brand, over all weeks; elasticities are shrunk towards the brand's mean by their
noise. With rivals, deals and features at their means that is a case of ``orange_juice``. The history is of the first
sixty weeks alone, as it was. Beside ``prm`` stand analysts who estimate an elasticity for every brand from the same
weeks, set the best prices by it, and try nothing.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import profl
from benchmarks.bench import Row
from profl.cases.orange_juice import dollars
from profl.data.dataset import MissingDataError
from profl.data.orange_juice import BRANDS, COST, PRICE
from profl.methods.prm.fixed_effects import within
from profl.problem.families import GaussianMean
from profl_papers.claims import Claim, Part, at_most

FILE = "orange_juice_weeks.csv"
STORES, SAMPLES, ROUNDS, LAST_WEEK = 10, 26, 30, 100
"""Of the world, a deployment, a run, and the history."""
AFTER = 5, 15, 30
PRICES = np.linspace(-0.5, 0.5, 1001)
"""Log prices among which an analyst chooses."""
FOLDS = 5
"""Parts that the weeks are cut into: what is said of one is fitted to the others."""


class Weeks(NamedTuple):
    """A row for each store and week in which all brands were sold, (N,) and (N, brands)."""

    store: np.ndarray
    week: np.ndarray
    ounces: np.ndarray  # log
    price: np.ndarray  # log, above the chain's mean
    deal: np.ndarray
    feature: np.ndarray

    def rows(self, chosen: np.ndarray) -> Weeks:
        return Weeks(*(column[chosen] for column in self))

    @property
    def rivals(self) -> np.ndarray:
        """The mean log price of the other brands, (N, brands)."""
        return (self.price.sum(1, keepdims=True) - self.price) / (self.price.shape[1] - 1)


def locate() -> Path:
    """The file with the weeks."""
    folder = Path(os.environ.get("PROFL_DATA", "."))
    for path in (folder / FILE, folder / f"{FILE}.gz"):
        if path.is_file():
            return path
    raise MissingDataError(
        f"the weeks of orange juice are not here: set PROFL_DATA to a directory that holds {FILE} (or {FILE}.gz) with "
        "the columns store, week, brand (1 to 11), log_oz, price ($ per ounce), deal and feature, made from "
        "orangeJuice of the R package bayesm"
    )


def read(path: Path) -> Weeks:
    """The weeks in a csv file, which may be packed with gzip; store-weeks without all brands are left out."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    header, *lines = content.decode().splitlines()
    names = header.split(",")
    table = np.loadtxt(lines, delimiter=",", ndmin=2)
    table = table[np.lexsort([table[:, names.index(name)] for name in ("brand", "week", "store")])]
    keys, counts = np.unique(table[:, [names.index("store"), names.index("week")]], axis=0, return_counts=True)
    table = table[np.repeat(counts == len(BRANDS), counts)]
    keys = keys[counts == len(BRANDS)].astype(int)
    log_oz, price, deal, feature = (
        table[:, names.index(name)].reshape(-1, len(BRANDS)) for name in ("log_oz", "price", "deal", "feature")
    )
    return Weeks(keys[:, 0], keys[:, 1], log_oz, np.log(price / PRICE), deal, feature)


def fit_world(weeks: Weeks) -> profl.Problem:
    """The case whose stores, those of ``weeks``, have levels, elasticities and noise fitted to them."""
    stores = np.unique(weeks.store)
    found = np.array([[fit_store(weeks.rows(weeks.store == store), b) for b in range(len(BRANDS))] for store in stores])
    level, elasticity, variance, sd = np.moveaxis(found, 2, 0)
    mean = elasticity.mean(0)
    between = np.maximum(elasticity.var(0) - variance.mean(0), 0.0)
    share = between / np.maximum(between + variance, np.finfo(float).tiny)
    clients = {"level": level, "elasticity": mean + share * (elasticity - mean), "sd": sd}
    case = profl.cases.orange_juice(stores.tolist())
    return replace(case, clients=clients, family=GaussianMean(sd=tuple(np.sqrt(np.mean(sd**2, 0)).tolist())))


def fit_store(weeks: Weeks, brand: int) -> tuple[float, float, float, float]:
    """(Level, elasticity, the variance of that, the noise) of a brand at one store."""
    columns = np.stack([part[:, brand] for part in (weeks.price, weeks.rivals, weeks.deal, weeks.feature)], 1)
    columns[:, 1:] -= columns[:, 1:].mean(0)
    design = np.column_stack([np.ones(len(columns)), columns])
    coefficients = np.linalg.lstsq(design, weeks.ounces[:, brand], rcond=None)[0]
    rest = weeks.ounces[:, brand] - design @ coefficients
    noise = rest @ rest / max(len(rest) - design.shape[1], 1)
    return coefficients[0], coefficients[1], noise * np.linalg.pinv(design.T @ design)[1, 1], np.sqrt(noise)


def past(case: profl.Problem, weeks: Weeks, effects: bool = True) -> profl.methods.PastDeployments:
    """The weeks as ``prm`` takes them: effects of stores, and of weeks, and deals and features as covariates.

    Prices are set for the whole chain: within a week stores differ by little.
    """
    number = groups(weeks)
    known: dict[str, Any] = {
        "covariates": np.hstack([weeks.deal, weeks.feature]),
        "names": BRANDS,
        "period_effects": effects,
    }
    return profl.methods.past_deployments(case, number, weeks.week, weeks.price, f=weeks.ounces, **known)


# -- analysts ----------------------------------------------------------------------------------------------------------


def least_squares(weeks: Weeks, others: bool) -> np.ndarray:
    """The elasticity of every brand, (brands,), with levels of stores; ``others``: rivals, deal and feature beside."""
    found = []
    for brand in range(len(BRANDS)):
        parts = (weeks.price, weeks.rivals, weeks.deal, weeks.feature) if others else (weeks.price,)
        columns = within(np.stack([weeks.ounces[:, brand], *(part[:, brand] for part in parts)], 1), [groups(weeks)])
        found.append(np.linalg.lstsq(columns[:, 1:], columns[:, 0], rcond=None)[0][0])
    return np.array(found)


def double_machine_learning(weeks: Weeks) -> np.ndarray:
    """The elasticity of every brand, (brands,), by a partially linear model (Chernozhukov et al. 2018).

    What a store sells and charges is predicted from the other prices, all deals and features, and the week, by a random
    forest that was fitted to other weeks.
    """
    try:
        from doubleml import DoubleMLData, DoubleMLPLR
        from sklearn.ensemble import RandomForestRegressor
    except ImportError as error:
        raise MissingDataError("double machine learning needs more packages: pip install 'profl[bench]'") from error
    number = np.unique(weeks.week, return_inverse=True)[1]
    fold = number * FOLDS // (number.max() + 1)
    splits = [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(FOLDS)]
    prices = within(weeks.price, [groups(weeks)])
    sold, found = within(weeks.ounces, [groups(weeks)]), []
    for brand in range(len(BRANDS)):
        others = np.hstack([np.delete(prices, brand, 1), weeks.deal, weeks.feature, weeks.week[:, None]])
        data = DoubleMLData.from_arrays(x=others, y=sold[:, brand], d=prices[:, brand])
        forests = (RandomForestRegressor(100, min_samples_leaf=5, random_state=0) for _ in range(2))
        model = DoubleMLPLR(data, *forests, n_folds=FOLDS)
        found.append(model.set_sample_splitting([splits]).fit().coef[0])
    return np.array(found)


def groups(weeks: Weeks) -> np.ndarray:
    """The stores as numbers from 0 on, (N,)."""
    return np.unique(weeks.store, return_inverse=True)[1]


def best_prices(weeks: Weeks, elasticity: np.ndarray) -> np.ndarray:
    """The log prices (brands,) that earn the most with these elasticities, at every store's own mean sales."""
    rest, best = weeks.ounces - elasticity * weeks.price, []
    number = groups(weeks)
    count = np.bincount(number)
    for brand, eta in enumerate(elasticity):
        level = np.bincount(number, rest[:, brand]) / count
        margin = PRICE[brand] * np.exp(PRICES) - COST[brand]
        best.append(PRICES[np.argmax(np.exp(level).sum() * margin * np.exp(eta * PRICES))])
    return np.array(best)


# -- the part ----------------------------------------------------------------------------------------------------------


def real(seeds: int, quick: bool) -> Part:
    """What is left of the gap between the present prices and the best, and what deploying cost on the way."""
    weeks = read(locate())
    known = np.unique(weeks.store)
    chosen = known[np.round(np.linspace(0, len(known) - 1, STORES)).astype(int)]
    return compare(weeks.rows(np.isin(weeks.store, chosen)), seeds, quick)


def compare(weeks: Weeks, seeds: int, quick: bool) -> Part:
    """All rows, in a world that was fitted to ``weeks``."""
    case, first = fit_world(weeks), weeks.rows(weeks.week <= LAST_WEEK)
    start = np.zeros(len(BRANDS))
    gap = case.risk(start) - case.risk(case.optimum)
    rounds = 6 if quick else ROUNDS
    rows: list[Row] = []

    def add(name: str, excess: np.ndarray, regret: float) -> None:
        figures = {f"after {n}": float(excess[min(n, rounds)]) for n in (0, *AFTER)}
        rows.append({"part": "real weeks", "who": name, **figures, "regret": regret})

    history, within_weeks = past(case, first, False), past(case, first)
    methods = {
        "prm from nothing": profl.prm(),
        "prm with history": profl.prm(history=history),
        "prm with history, week effects removed": profl.prm(history=within_weeks),
    }
    for name, method in methods.items():
        run = profl.simulate(
            case, method, rounds=rounds, local_steps=1, samples=SAMPLES, seeds=range(seeds), progress=False
        )
        add(name, run.excess.mean(0) / gap, float(run.deployed_regret[:, -1].mean() / gap))
    analysts: dict[str, Callable[[], np.ndarray]] = {
        "least squares, price alone": lambda: least_squares(first, False),
        "least squares, with rivals, deals, features": lambda: least_squares(first, True),
        "double machine learning": lambda: double_machine_learning(first),
        "the history's slopes": lambda: np.diagonal(history.pooled),
        "the history's slopes, week effects removed": lambda: np.diagonal(within_weeks.pooled),
    }
    truth = case.clients["elasticity"].mean(0)
    for name, estimate in analysts.items():
        elasticity = estimate()
        left = (case.risk(best_prices(first, elasticity)) - case.risk(case.optimum)) / gap
        add(name, np.append(1.0, np.full(rounds, left)), float(left))
        rows[-1]["mean elasticity"] = float(elasticity.mean())
        rows[-1]["root mean square error"] = float(np.sqrt(np.mean((elasticity - truth) ** 2)))
    add("present prices", np.ones(rounds + 1), 1.0)
    rows.append(world_row(case, truth))
    return Part(rows, [] if quick else claims(rows))


def world_row(case: profl.Problem, truth: np.ndarray) -> Row:
    """What the world is like, in dollars of profit a store-week."""
    figures: dict[str, Any] = {
        "present $": dollars(case, np.zeros(len(BRANDS))),
        "best $": dollars(case, case.optimum),
        "mean elasticity": float(truth.mean()),
    }
    return {"part": "real weeks", "who": f"the world: {case.count} stores", **figures}


def claims(rows: list[Row]) -> list[Claim]:
    """What real history must bring."""
    none, history = rows[0], rows[1]
    most = {"after 5": 1.0, "after 30": 1.1, "regret": 0.5}
    return [
        at_most(f"real weeks: {name} with history, over that from nothing", history[name] / none[name], bar)
        for name, bar in most.items()
    ]
