"""Small made data sets with the columns of the real ones, so that every test runs without them."""

from __future__ import annotations

import numpy as np

from profl.data import adult, credit
from profl.data.dataset import csv_bytes


def made_adult(rows: int = 600, seed: int = 0) -> bytes:
    """A csv in the combined form: a quarter earns more; numeric columns that tell the classes apart a little."""
    rng = np.random.default_rng(seed)
    rich = np.arange(rows) % 4 == 3
    z = rng.normal(size=(rows, 6)) + rich[:, None] * np.array([0.6, 0.0, 0.9, 0.5, 0.4, 0.7])
    scale = np.array([[40, 12], [190_000, 50_000], [9, 2], [2000, 500], [300, 60], [40, 8]])
    numbers = np.maximum(np.round(scale[:, 0] + scale[:, 1] * z), 1).astype(int)
    columns = {name: numbers[:, k] for k, name in enumerate(adult.NUMERIC)}
    columns["workclass"] = np.where(rng.random(rows) < 0.1, "?", "Private")
    columns["income"] = np.where(rich, ">50K", "<=50K")
    cells = [[str(columns[name][i]) if name in columns else "Other" for name in adult.HEADER] for i in range(rows)]
    return csv_bytes(adult.HEADER, cells)


def made_credit(rows: int = 600, seed: int = 0) -> bytes:
    """A csv in the competition's form: one in eight defaults, one in five incomes is missing."""
    rng = np.random.default_rng(seed)
    late = np.arange(rows) % 8 == 5
    z = rng.normal(size=(rows, 10)) + late[:, None] * np.linspace(-0.5, 1.0, 10)
    z[:, credit.NUMERIC.index("age")] = np.clip(np.round(50 + 12 * z[:, 1]), 21, 99)
    z[rng.random(rows) < 0.2, credit.NUMERIC.index("MonthlyIncome")] = np.nan
    cells = [[str(i + 1), str(int(late[i])), *(credit.number(round(value, 6)) for value in z[i])] for i in range(rows)]
    return csv_bytes(["", credit.LABEL, *credit.NUMERIC], cells, end="\r\n")


def raw_adult(content: bytes, test_rows: int) -> tuple[bytes, bytes]:
    """The two original files that the combined csv comes from: blanks, dots, a first line, empty lines and all."""
    rows = [", ".join(line.split(",")) for line in content.decode().splitlines()[1:]]
    data, test = rows[: len(rows) - test_rows], rows[len(rows) - test_rows :]
    return (
        ("\n".join(data) + "\n\n").encode(),
        ("|1x3 Cross validator\n" + "".join(row + ".\n" for row in test) + "\n").encode(),
    )
