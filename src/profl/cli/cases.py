"""``profl cases``: the case studies and their known answers.

Answers of the library's own cases, in their default settings, are stored beside them (``STORED``); a test solves them
anew. With ``--solve`` so does the command; ``--json`` of that is what is stored.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from profl import cases as library
from profl import trees
from profl.cases import CASES
from profl.cli.options import JsonPath, Quiet
from profl.data import MissingDataError
from profl.problem.problem import Problem
from profl.progress import progress_bar
from profl.storage.atomic import write_json

OF = {"gmsc3": "credit", "gmsc10": "credit"}
"""The data set of a case that is not called after it."""

STORED = Path(library.__file__).parent / "answers.json"
ANSWERS = ("optimum", "optimum_risk", "stable", "stable_risk")


def cases(
    json_path: JsonPath = None,
    quiet: Quiet = False,
    solve: Annotated[bool, typer.Option("--solve", help="Solve all cases anew: about a minute.")] = False,
) -> None:
    """The case studies with their optimum, their stable point and the risk at each."""
    known = {} if solve else stored()
    rows = []
    with progress_bar("cases", len(CASES), not quiet) as advance:
        for name, function in CASES.items():
            rows.append(known[name] if own(function) and name in known else describe_case(name, function))
            advance(1)
    if json_path:
        write_json(json_path, {"cases": rows})
    if not quiet:
        Console().print(table_of(rows))


def table_of(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="Cases (default settings)", title_justify="left")
    for column in ("case", "what", "optimum PO", "risk at PO", "stable point PS", "risk at PS"):
        table.add_column(column, justify="right" if "risk" in column else "left", overflow="fold")
    for row in rows:
        points = [" ".join(f"{x:.3g}" for x in row[key] or ()) for key in ("optimum", "stable")]
        risks = ["" if row[key] is None else f"{row[key]:.4f}" for key in ("optimum_risk", "stable_risk")]
        table.add_row(row["case"], row["what"], points[0], risks[0], points[1], risks[1])
    return table


def stored() -> dict[str, dict[str, Any]]:
    """The stored rows by name."""
    rows = json.loads(STORED.read_text())["cases"] if STORED.is_file() else []
    return {row["case"]: row for row in rows if row["optimum"] is not None}


def own(function: Callable[..., Problem]) -> bool:
    """Whether a case is the library's, and not one that somebody added."""
    return function.__module__.startswith(library.__name__ + ".")


def describe_case(name: str, function: Callable[..., Problem]) -> dict[str, Any]:
    """What a case is and its known answers; None where its data are not on this machine."""
    what = (inspect.getdoc(function) or name).splitlines()[0]
    try:
        problem = function()
    except MissingDataError:
        return {"case": name, "what": f"{what} (needs: profl data get {OF.get(name, name)})", **dict.fromkeys(ANSWERS)}
    points = (problem.optimum, problem.stable)
    answers = [value for point in points for value in (trees.ravel(point).tolist(), problem.risk(point))]
    return {"case": name, "what": what, **dict(zip(ANSWERS, answers, strict=True))}
