"""Adult and Give Me Some Credit: real people who game the classifier (paper, Figures 4c and 4d).

The paper gives no constants. With these the stable point is clearly worse than the optimum: on Adult, with
equal clients, accuracy 0.549 against 0.578 when everyone responds with gamma 6, and 0.549 against 0.624 when only
class 1 does with gamma 3. ``profl.cases.responding`` has the reaction, ``profl.data.prepare`` what is done to the rows.

Accuracy in percent over the last 20 of 200 rounds, mean and standard deviation over seeds 0-9 (PFL) and 10-19 (PoFL),
with eta = 0.3, H = 100, n = 2000, R = 5 (chosen on seeds 0-4) and otherwise the defaults:

    case                             PS     PFL            PO     PoFL
    adult                            54.91  54.89 (0.02)   57.79  57.87 (0.13)
    adult, positive, sensitivity 3   54.96  54.82 (0.02)   62.32  62.33 (0.15)
    credit                           53.52  53.59 (0.04)   55.72  55.86 (0.22)

What keeps PoFL from the optimum is noise in its Jacobian. It is largest on credit: with eta = 0.1, n = 500 and H = 20
the excess risk there is 8e-4, two thirds of the stable point's, and 2e-5 with the exact Jacobian (seeds 0-4).
"""

from __future__ import annotations

import os
from typing import Any

from profl import checks
from profl.cases.responding import responding
from profl.data import adult as adult_data
from profl.data import credit as credit_data
from profl.data.dataset import Table
from profl.data.registry import load
from profl.problem.problem import Problem

Source = str | os.PathLike[str] | Table | None
"""Where the rows come from: a file, a directory, a table, or None for PROFL_DATA and the cache."""


@checks.explain_call
def adult(
    clients: int = 10,
    heterogeneity: float = 0.1,
    weights: Any = None,
    seed: int = 0,
    *,
    sensitivity: float = 6.0,
    respond: str = "all",
    split: str = "random",
    part: str = "train",
    test: float = 0.2,
    spread: str = "even",
    data: Source = None,
) -> Problem:
    """Adult, six numeric columns: who earns more than 50K, among people who move against the score.

    Args:
      heterogeneity: half-width of the clients' sensitivities, relative to their mean.
      weights: alpha_i; by default each client's share of the rows.
      seed: of the balancing, the hold-out, the split over clients and a uniform spread.
      sensitivity: the mean of gamma_i.
      respond: "all", or "positive": only those of class 1 move (with a sensitivity of 3, say).
      split: "random", "education" or "age": which rows a client has; see ``profl.data.prepare``.
      part: "train", or "test" for the rows held out, in the same clients.
      test: the share of rows held out.
      data: where the csv is (a file or directory), or a ``profl.data.Table`` of your own.
    """
    table = data if isinstance(data, Table) else adult_data.table(load("adult", data))
    return responding(
        table,
        clients=clients,
        sensitivity=sensitivity,
        heterogeneity=heterogeneity,
        respond=respond,
        split=split,
        part=part,
        test=test,
        weights=weights,
        spread=spread,
        seed=seed,
    )


@checks.explain_call
def credit(
    clients: int = 10,
    heterogeneity: float = 0.1,
    weights: Any = None,
    seed: int = 0,
    *,
    sensitivity: float = 6.0,
    respond: str = "all",
    rows: str = "subset",
    split: str = "random",
    part: str = "train",
    test: float = 0.2,
    spread: str = "even",
    data: Source = None,
) -> Problem:
    """Give Me Some Credit, ten numeric columns: who defaults, among borrowers who move against the score.

    ``rows`` is "subset" (the 18,357 complete rows that are usual) or "all" (150,000, gaps filled with medians);
    ``split`` is "random" or "age"; the rest is as in ``adult``.
    """
    table = data if isinstance(data, Table) else credit_data.table(load("credit", data), rows)
    return responding(
        table,
        clients=clients,
        sensitivity=sensitivity,
        heterogeneity=heterogeneity,
        respond=respond,
        split=split,
        part=part,
        test=test,
        weights=weights,
        spread=spread,
        seed=seed,
    )
