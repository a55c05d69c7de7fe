"""``profl cases``: the case studies and their known answers.

Answers of the library's own cases, in their default settings, are stored beside them (``STORED``); a test solves them
anew. With ``--solve`` so does the command; ``--json`` of that is what is stored.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from profl import cases as library
from profl import trees
from profl.cases import CASES
from profl.cli import outputs
from profl.cli.console import print_table
from profl.cli.options import JsonPath, Quiet, Wide
from profl.data import MissingDataError
from profl.problem.problem import Problem
from profl.progress import progress_bar
from profl.storage.atomic import write_json

DATA_SETS = {"gmsc3": "credit", "gmsc10": "credit"}
"""The data set of a case that is not called after it."""

STORED = Path(library.__file__).parent / "answers.json"
ANSWERS = ("optimum", "optimum_risk", "stable", "stable_risk")


def cases(
    json_path: JsonPath = None,
    wide: Wide = False,
    quiet: Quiet = False,
    solve: Annotated[bool, typer.Option("--solve", help="Solve all cases anew: about a minute.")] = False,
) -> None:
    """The case studies with the risk at their optimum (PO) and at their stable point (PS).

    Example: profl cases --wide
    """
    outputs.check_files(json=json_path)
    stored = {} if solve else stored_answers()
    rows = []
    with progress_bar("cases", len(CASES), not quiet) as advance:
        for name, function in CASES.items():
            rows.append(stored[name] if is_library_case(function) and name in stored else describe_case(name, function))
            advance(1)
    if json_path:
        write_json(json_path, {"cases": rows})
    if not quiet:
        print_cases(Console(), rows, wide)


def stored_answers() -> dict[str, dict[str, Any]]:
    """The stored rows by the name of their case."""
    rows = json.loads(STORED.read_text())["cases"] if STORED.is_file() else []
    return {row["case"]: row for row in rows if row["optimum"] is not None}


def is_library_case(function: Callable[..., Problem]) -> bool:
    """Whether a case is defined in this library, not by a user."""
    return function.__module__.startswith(library.__name__ + ".")


def print_cases(console: Console, rows: Sequence[dict[str, Any]], wide: bool) -> None:
    """Print one line per case; ``wide`` adds the points and the whole description."""
    risks = [["" if row[key] is None else f"{row[key]:.4f}" for key in ("optimum_risk", "stable_risk")] for row in rows]
    if wide:
        header = ["case", "what", "optimum PO", "risk at PO", "stable point PS", "risk at PS"]
        points = [[" ".join(f"{x:.3g}" for x in row[key] or ()) for key in ("optimum", "stable")] for row in rows]
        cells = [
            [row["case"], row["what"], at[0], risk[0], at[1], risk[1]]
            for row, at, risk in zip(rows, points, risks, strict=True)
        ]
        text = ["what", "optimum PO", "stable point PS"]
        print_table(console, "Cases (default settings)", header, cells, text)
        return
    header = ["case", "what", "risk at PO", "risk at PS"]
    cells = [[row["case"], short_description(row["what"]), *risk] for row, risk in zip(rows, risks, strict=True)]
    print_table(console, "Cases (default settings; --wide has the points)", header, cells, ["what"], short="what")


def short_description(what: str) -> str:
    """The command that fetches the data if they are missing; otherwise the description of the case."""
    return what[what.index("(needs: ") + 1 : -1] if "(needs: " in what else what


def describe_case(name: str, function: Callable[..., Problem]) -> dict[str, Any]:
    """A row for a case: its description and known answers, which are None if its data are not on this machine."""
    what = (inspect.getdoc(function) or name).splitlines()[0]
    try:
        problem = function()
    except MissingDataError:
        return {
            "case": name,
            "what": f"{what} (needs: profl data get {DATA_SETS.get(name, name)})",
            **dict.fromkeys(ANSWERS),
        }
    points = (problem.optimum, problem.stable)
    answers = [value for point in points for value in (trees.ravel(point).tolist(), problem.risk(point))]
    return {"case": name, "what": what, **dict(zip(ANSWERS, answers, strict=True))}
