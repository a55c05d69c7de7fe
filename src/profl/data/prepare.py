"""From a table to a federation's rows. The steps, in this order; every random choice comes from ``seed``:

1. balance: keep all of the smaller class and as many of the larger one, drawn without replacement;
2. hold out: a share of each class, at random, is the test part; the rest is the training part;
3. fill: a missing value becomes the training part's median of its column;
4. standardise: each column minus the training part's mean, over its standard deviation. The test part is moved and
   scaled by the *training* part's numbers. There is no column of ones;
5. split over clients: at random, in parts that differ by one row at most; or by a column, where each client gets a
   band of neighbouring values, never a part of one value, so that the training rows per client are as equal as whole
   values allow. The test rows follow the same bands.

Clients with fewer rows than the largest are filled up with zeros, which ``counts`` says to leave alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from profl import checks
from profl.data.dataset import Table


class Rows(NamedTuple):
    """The rows of every client, stacked; row j of client i is one of its own where j < counts[i]."""

    x: np.ndarray  # (clients, rows, features)
    y: np.ndarray  # (clients, rows), 0 or 1
    counts: np.ndarray  # (clients,)


class Prepared(NamedTuple):
    """The rows of all clients, and what they were standardised with."""

    train: Rows
    test: Rows
    mean: np.ndarray  # of the training part, (features,)
    sd: np.ndarray


def prepare(table: Table, clients: int, split: str = "random", test: float = 0.2, seed: int = 0) -> Prepared:
    """The table's rows, balanced, held out, standardised and split over clients.

    >>> rng = np.random.default_rng(0)
    >>> table = Table("made", ("a",), rng.normal(3.0, 2.0, (100, 1)), np.arange(100) % 4 // 3, {})
    >>> ready = prepare(table, clients=4)
    >>> ready.train.counts.tolist(), ready.test.counts.tolist(), round(float(ready.train.x.std()), 6)
    ([10, 10, 10, 10], [3, 3, 2, 2], 1.0)
    """
    checks.positive_int("clients", clients)
    checks.one_of("split", split, ["random", *table.groups])
    rng = np.random.default_rng([seed, 2])
    parts = hold_out(table.y, balance(table.y, rng), test, rng)
    x, mean, sd = standardise(table.x, parts[0])
    values = None if split == "random" else table.groups[split]
    bands = None if values is None else cut(values[parts[0]], clients, split)
    done = []
    for rows in parts:
        owner = deal(len(rows), clients, rng) if bands is None or values is None else np.digitize(values[rows], bands)
        done.append(stack(x[rows], table.y[rows], owner, clients))
    return Prepared(done[0], done[1], mean, sd)


def balance(y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Numbers of rows with as many of class 0 as of class 1, in random order.

    >>> rows = balance(np.array([0, 0, 0, 0, 1, 1]), np.random.default_rng(0))
    >>> len(rows), {4, 5} <= set(rows.tolist())
    (4, True)
    """
    classes = [np.flatnonzero(y == k) for k in (0, 1)]
    size = min(map(len, classes))
    if size == 0:
        raise checks.InputError("both classes must have rows, got one class only")
    return rng.permutation(np.concatenate([rng.permutation(rows)[:size] for rows in classes]))


def hold_out(y: np.ndarray, rows: np.ndarray, share: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(training, test) rows; the test part has the same share of each class."""
    if not 0 <= checks.real("test", share) < 1:
        raise checks.InputError(f"test must lie in [0, 1), the share of rows held out, got {share!r}")
    train, test = [], []
    for k in (0, 1):
        members = rows[y[rows] == k]
        held = round(share * len(members))
        test.append(members[:held])
        train.append(members[held:])
    return rng.permutation(np.concatenate(train)), rng.permutation(np.concatenate(test))


def standardise(x: np.ndarray, train: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All rows with the training rows' medians filled in, moved and scaled by the training rows' mean and sd.

    >>> standardise(np.array([[1.0], [3.0], [np.nan], [9.0]]), np.array([0, 1]))[0].ravel().tolist()
    [-1.0, 1.0, 0.0, 7.0]
    """
    filled = np.where(np.isnan(x), np.nanmedian(x[train], axis=0), x)
    mean, sd = filled[train].mean(0), filled[train].std(0)
    sd = np.where(sd > 0, sd, 1.0)
    return (filled - mean) / sd, mean, sd


def deal(rows: int, clients: int, rng: np.random.Generator) -> np.ndarray:
    """The owner of each row, at random; shares differ by one row at most."""
    return rng.permutation(np.arange(rows) % clients)


def cut(values: np.ndarray, clients: int, column: str) -> np.ndarray:
    """The values at which a new client's band begins (clients - 1 of them), bands as equal as whole values allow.

    >>> cut(np.array([20, 20, 30, 40, 50, 50]), 3, "age").tolist()
    [30, 50]
    """
    distinct, sizes = np.unique(values, return_counts=True)
    if len(distinct) < clients:
        raise checks.InputError(
            f"clients must be at most {len(distinct)}, the number of different values of {column}, got {clients}"
        )
    starts, first = [], 0
    for left in range(
        clients, 1, -1
    ):  # the first of the bands that are left takes its share, and leaves one value each
        below = np.cumsum(sizes[first : len(sizes) - left + 1])
        first += 1 + int(np.argmin(np.abs(below - sizes[first:].sum() / left)))
        starts.append(distinct[first])
    return np.array(starts)


def stack(x: np.ndarray, y: np.ndarray, owner: np.ndarray, clients: int) -> Rows:
    """The rows of each client, filled up with zeros to the length of the longest."""
    counts = np.bincount(owner, minlength=clients)
    place = np.concatenate([np.arange(n) for n in counts]) if len(owner) else np.zeros(0, int)
    order = np.argsort(owner, kind="stable")
    length = max(1, int(counts.max(initial=0)))
    features, classes = np.zeros((clients, length, x.shape[1])), np.zeros((clients, length), np.int32)
    features[owner[order], place], classes[owner[order], place] = x[order], y[order]
    return Rows(features, classes, counts.astype(np.int32))
