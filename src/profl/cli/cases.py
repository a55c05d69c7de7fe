"""``profl cases``: the case studies and their known answers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console

from profl import trees
from profl.cases import CASES
from profl.cli import outputs
from profl.cli.console import print_table
from profl.cli.options import JsonPath, Quiet, Wide
from profl.data import MissingDataError
from profl.problem.problem import Problem
from profl.storage.atomic import write_json

OF = {"gmsc3": "credit", "gmsc10": "credit"}
"""The data set of a case that is not called after it."""


def cases(json_path: JsonPath = None, wide: Wide = False, quiet: Quiet = False) -> None:
    """The case studies with the risk at their optimum (PO) and at their stable point (PS).

    Example: profl cases --wide
    """
    outputs.check_files(json=json_path)
    rows = [describe_case(name, function) for name, function in CASES.items()]
    if json_path:
        write_json(json_path, {"cases": rows})
    if quiet:
        return
    show(Console(), rows, wide)


def show(console: Console, rows: Sequence[dict[str, Any]], wide: bool) -> None:
    """One line per case; ``wide`` has the points themselves and all that is said of a case."""
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
    cells = [[row["case"], needed(row["what"]), *risk] for row, risk in zip(rows, risks, strict=True)]
    print_table(console, "Cases (default settings; --wide has the points)", header, cells, ["what"], short="what")


def needed(what: str) -> str:
    """How to get the data, where they are missing, and what the case is otherwise: a line has no room for both."""
    return what[what.index("(needs: ") + 1 : -1] if "(needs: " in what else what


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
