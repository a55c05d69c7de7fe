"""Give Me Some Credit (a 2011 competition): does a borrower fall 90 days behind within two years?

The csv is the competition's training file as the package ``whynot`` 0.12.0 carries it, byte for byte: 150,000 rows,
lines that end in carriage return and line feed, ``NA`` where a value is missing (monthly income and dependents). No
open licence is known: it is for local use and is never part of this package.

The table: the ten numeric columns, class 1 for a default, and ``age`` to split clients by. ``rows="subset"`` keeps the
18,357 rows that are usual in work on performative prediction: complete rows only, all 8,357 defaults and the first
10,000 others. ``rows="all"`` keeps all 150,000, missing values as NaN.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np

from profl import checks
from profl.data.dataset import Dataset, Table, csv_bytes, csv_columns

LABEL = "SeriousDlqin2yrs"
NUMERIC = (
    "RevolvingUtilizationOfUnsecuredLines",
    "age",
    "NumberOfTime30-59DaysPastDueNotWorse",
    "DebtRatio",
    "MonthlyIncome",
    "NumberOfOpenCreditLinesAndLoans",
    "NumberOfTimes90DaysLate",
    "NumberRealEstateLoansOrLines",
    "NumberOfTime60-89DaysPastDueNotWorse",
    "NumberOfDependents",
)
NEGATIVES = 10_000


def from_package(read: Callable[[str], bytes]) -> bytes:
    """The csv from the zip file in the package; ``read`` returns the file whose path ends so."""
    with zipfile.ZipFile(io.BytesIO(read("credit/credit_data.zip"))) as archive:
        return archive.read("credit_data.csv")


def from_openml(frame: Any) -> list[bytes]:
    """The csv written again from a frame of numbers, rows numbered from 1."""
    columns = [[number(value) for value in frame[name]] for name in (LABEL, *NUMERIC)]
    rows = [[str(i + 1), *row] for i, row in enumerate(zip(*columns, strict=True))]
    return [csv_bytes(["", LABEL, *NUMERIC], rows, end="\r\n")]


def number(value: Any) -> str:
    """A number as the csv writes it.

    >>> number(9120.0), number(0.766126609), number(7.96e-05), number(float("nan"))
    ('9120', '0.766126609', '7.96E-05', 'NA')
    """
    x = float(value)
    if math.isnan(x):
        return "NA"
    if x == int(x):
        return str(int(x))
    return f"{x:.2E}" if abs(x) < 1e-4 else repr(x)


def table(content: bytes, rows: str = "subset") -> Table:
    """Features, class and groups of the csv; ``rows`` is "subset" or "all"."""
    checks.one_of("rows", rows, ["subset", "all"])
    columns = csv_columns(content)
    x = np.stack([numbers(columns[name]) for name in NUMERIC], axis=1)
    y = np.array(columns[LABEL], dtype=np.int32)
    if rows == "subset":
        keep = usual_subset(x, y)
        x, y = x[keep], y[keep]
    return Table("credit", NUMERIC, x, y, {"age": x[:, NUMERIC.index("age")]})


def usual_subset(x: np.ndarray, y: np.ndarray, negatives: int = NEGATIVES) -> np.ndarray:
    """The numbers of the complete rows that are defaults or among the first ``negatives`` others, in their order.

    >>> usual_subset(np.array([[1.0], [np.nan], [2.0], [3.0], [4.0]]), np.array([0, 1, 1, 0, 0]), negatives=2)
    array([0, 2, 3])
    """
    complete = np.flatnonzero(np.all(np.isfinite(x), axis=1))
    others = complete[y[complete] == 0][:negatives]
    return np.sort(np.concatenate([complete[y[complete] == 1], others]))


def benchmark(everyone: Table) -> tuple[np.ndarray, np.ndarray]:
    """Features and class of the usual subset of a table with ``rows="all"``, as Perdomo et al. (2020) prepare them.

    Columns are standardised over all complete rows, not over the subset; rows are in their order.

    >>> x, y = np.array([[1.0], [np.nan], [5.0], [3.0]]), np.array([0, 1, 1, 0])
    >>> [part.ravel().round(2).tolist() for part in benchmark(Table("made", ("a",), x, y, {}))]
    [[-1.22, 1.22, 0.0], [0, 1, 0]]
    """
    complete = everyone.x[np.all(np.isfinite(everyone.x), axis=1)]
    rows = usual_subset(everyone.x, everyone.y)
    return (everyone.x[rows] - complete.mean(0)) / complete.std(0), everyone.y[rows]


def numbers(column: list[str]) -> np.ndarray:
    """A column of the csv as numbers, NaN where a value is missing."""
    return np.array([math.nan if cell in ("", "NA") else float(cell) for cell in column])


CREDIT = Dataset(
    name="credit",
    title="Give Me Some Credit",
    rows=150_000,
    sha256="1bd46da486a5708c58c7b01a034fae2a13b327f6f7b62ea7ba4fe3b5824b24ac",
    files=("give_me_some_credit.csv", "give_me_some_credit.csv.gz", "credit_data.csv", "cs-training.csv"),
    licence="none known; local use only",
    openml=("GiveMeSomeCredit", "active"),
    from_openml=from_openml,
    package="whynot==0.12.0",
    from_package=from_package,
)
