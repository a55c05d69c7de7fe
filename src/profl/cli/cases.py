"""``profl cases``: the case studies and their known answers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from profl import trees
from profl.cases import CASES
from profl.cli.options import JsonPath, Quiet
from profl.data import MissingDataError
from profl.problem.problem import Problem
from profl.storage.atomic import write_json

OF = {"gmsc3": "credit", "gmsc10": "credit"}
"""The data set of a case that is not called after it."""


def cases(json_path: JsonPath = None, quiet: Quiet = False) -> None:
    """The case studies with their optimum, their stable point and the risk at each."""
    rows = [describe_case(name, function) for name, function in CASES.items()]
    if json_path:
        write_json(json_path, {"cases": rows})
    if quiet:
        return
    table = Table(title="Cases (default settings)", title_justify="left")
    for column in ("case", "what", "optimum PO", "risk at PO", "stable point PS", "risk at PS"):
        table.add_column(column, justify="right" if "risk" in column else "left", overflow="fold")
    for row in rows:
        points = [" ".join(f"{x:.3g}" for x in row[key] or ()) for key in ("optimum", "stable")]
        risks = ["" if row[key] is None else f"{row[key]:.4f}" for key in ("optimum_risk", "stable_risk")]
        table.add_row(row["case"], row["what"], points[0], risks[0], points[1], risks[1])
    Console().print(table)


def describe_case(name: str, function: Callable[..., Problem]) -> dict[str, Any]:
    """What a case is and its known answers; None where its data are not on this machine."""
    what = (inspect.getdoc(function) or "").splitlines()[0]
    keys = ("optimum", "optimum_risk", "stable", "stable_risk")
    try:
        problem = function()
    except MissingDataError:
        return {"case": name, "what": f"{what} (needs: profl data get {OF.get(name, name)})", **dict.fromkeys(keys)}
    points = (problem.optimum, problem.stable)
    answers = [value for point in points for value in (trees.ravel(point).tolist(), problem.risk(point))]
    return {"case": name, "what": what, **dict(zip(keys, answers, strict=True))}
