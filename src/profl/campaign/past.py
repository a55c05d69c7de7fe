"""Deployments of the past that a campaign is told of before its own: one long table, read, checked, and fitted.

A row is a sample; the rows of a client in one period, under one model, are one past deployment. The event of the log
holds these rows, and what ``profl.methods.past_deployments`` made of them, from which the states follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from profl import checks, trees
from profl.campaign.events import Arrays, Draft, hash_arrays
from profl.campaign.readings import Reader, check_units, mean_sizes
from profl.checks import InputError
from profl.methods.method import Method
from profl.methods.prm import PRM, PastDeployments, past_deployments
from profl.parts.units import half_width
from profl.problem.problem import Problem
from profl.storage import archive
from profl.typing import Batch

PERIODS = ("week", "period", "day", "month")
"""Columns that say when a row came about."""
FITTED = ("belief", "centre", "slope", "variance", "pooled", "pooled_error", "noise", "clusters", "rows")


class PastTable(NamedTuple):
    """A table of past deployments, one row of the arrays for each."""

    client: np.ndarray  # (N,): numbers of clients
    period: np.ndarray  # (N,): numbers of periods
    theta: np.ndarray  # (N, d): models as rows of numbers
    covariates: np.ndarray  # (N, c): means over the samples
    batches: list[Batch]
    columns: list[str]

    def arrays(self) -> Arrays:
        """The table as named arrays; ``sizes`` says how many samples each past deployment has."""
        stacked = jax.tree.map(lambda *leaves: np.concatenate(leaves), *self.batches)
        sizes = np.array([trees.rows(batch) for batch in self.batches])
        named = {"client": self.client, "period": self.period, "theta": self.theta, "covariates": self.covariates}
        return {f"past {name}": array for name, array in named.items()} | {
            "past sizes": sizes,
            **archive.named_arrays("past batch", stacked),
        }


def read_table(
    frame: Any,
    clients: dict[str, int],
    names: Sequence[str],
    like: Batch,
    family: Any,
    columns: list[str] | None,
    covariates: Sequence[str] = (),
) -> PastTable:
    """The past deployments in a long table with the columns ``client``, a period, ``names`` (the model's numbers),
    ``covariates``, and those of a sample."""
    have = [str(name) for name in frame.columns]
    frame = frame.set_axis(have, axis=1)
    period = next((name for name in PERIODS if name in have), None)
    wanted = ["client", *names, *covariates]
    if missing := [name for name in wanted if name not in have]:
        raise InputError(
            f"the history needs the columns {', '.join(wanted)}; missing: {', '.join(missing)}; there are: "
            f"{', '.join(have)}"
        )
    if period is None:
        raise InputError(f"the history needs a column {' or '.join(PERIODS)}; there are: {', '.join(have)}")
    keys = ["client", period, *names]
    frame = frame.dropna(subset=[*keys, *covariates])
    if frame.empty:
        raise InputError("the history has no row without empty cells")
    for name in (*names, *covariates):
        if frame[name].dtype.kind not in "iufb":
            raise InputError(f"the column {name!r} of the history must hold numbers")
    frame = frame.assign(client=frame["client"].astype(str))
    for name in frame["client"].unique():
        checks.one_of("client", name, clients)
    stated = columns or [name for name in have if name not in {*keys, *covariates}]
    reader = Reader(like, family, stated)
    groups = [(key, rows) for key, rows in frame.groupby(keys, sort=True)]
    batches = []
    for key, rows in groups:
        try:
            batches.append(reader.read(rows[stated], len(rows), None, None).batch)
        except InputError as error:
            raise InputError(f"{key[0]}, {period} {key[1]}: {error}") from None
    when = {value: number for number, value in enumerate(sorted(frame[period].unique()))}
    return PastTable(
        np.array([clients[key[0]] for key, _ in groups]),
        np.array([when[key[1]] for key, _ in groups]),
        np.array([key[2:] for key, _ in groups], float),
        np.array([[rows[name].mean() for name in covariates] for _, rows in groups], float).reshape(len(groups), -1),
        batches,
        stated,
    )


def fit_table(
    problem: Problem, table: PastTable, names: Sequence[str], belief: float, period_effects: bool
) -> PastDeployments:
    """What the past deployments say of the reaction."""
    like = trees.row_shape(trees.to_device(problem.initial_models((0,))))
    return past_deployments(
        problem,
        table.client,
        table.period,
        models(table.theta, like),
        table.batches,
        covariates=table.covariates if table.covariates.size else None,
        belief=belief,
        period_effects=period_effects,
        names=list(names),
    )


def models(rows: np.ndarray, like: Any) -> Any:
    """Rows of numbers (N, d) as a stacked pytree."""
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([int(np.prod(leaf.shape)) for leaf in leaves])[:-1]
    parts = np.split(rows, ends, axis=1)
    return jax.tree.unflatten(
        structure, [part.reshape(len(rows), *leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
    )


def check_model_units(problem: Problem, table: PastTable) -> None:
    """Refuse models that are in other units than the campaign's, whose numbers are of the size of its first model, or
    of half the model space where that is larger."""
    first = trees.take(trees.to_device(problem.initial_models((0,))), 0)
    half = np.asarray(half_width(problem.functions.view(), first), float)
    size = np.maximum(np.abs(np.asarray(trees.ravel(first), float)), np.where(half < np.inf, half, 0.0))
    try:
        check_units(np.abs(table.theta).mean(0).tolist(), [size.tolist()], [])
    except InputError as error:
        here = str(error).replace("the numbers", "the models of the history")
        raise InputError(here.replace("those that were told before", "those of this campaign")) from None


def draft(table: PastTable, fitted: PastDeployments, clients: Sequence[str], body: dict[str, Any], at: str) -> Draft:
    """The event that tells it."""
    raw = table.arrays()
    scales = {
        clients[number]: np.mean([mean_sizes(table.batches[i]) for i in np.flatnonzero(table.client == number)], 0)
        for number in np.unique(table.client)
    }
    body = {
        **body,
        "deployments": fitted.rows,
        "rows": int(raw["past sizes"].sum()),
        "columns": table.columns,
        "scales": {name: sizes.tolist() for name, sizes in scales.items()},
        "table": hash_arrays(raw),
    }
    data = {f"fitted {name}": np.asarray(getattr(fitted, name)) for name in FITTED}
    return Draft("history", at, body, data=raw | data)


def fitted_history(data: Arrays) -> PastDeployments:
    """What an event of the log says of the reaction."""
    own: dict[str, Any] = {name: data[f"fitted {name}"] for name in FITTED}
    own |= {"belief": float(own["belief"]), **{name: int(own[name]) for name in ("clusters", "rows")}}
    return PastDeployments(**own)


def check_method(method: Method) -> None:
    """Refuse a method that makes nothing of history."""
    if not isinstance(method, PRM):
        raise InputError(f"history is for prm, this campaign's method is {method.name}: nothing was written")
    if method.history is not None:
        raise InputError("the method of this campaign was made with a history already: nothing was written")
