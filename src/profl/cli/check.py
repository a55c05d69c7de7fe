"""``profl check``: does a problem fit its clients?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from profl.cli import outputs
from profl.cli.console import print_table, say
from profl.objects import import_object
from profl.run.diagnostics import HOLD
from profl.run.diagnostics import check as examine
from profl.storage.atomic import write_json

_COLOURS = {"ok": "", "warn": "yellow", "fail": "bold red"}


def check(
    problem: Annotated[str, typer.Argument(help="The problem, as FILE.py:NAME or MODULE:NAME.")],
    client: Annotated[
        str | None, typer.Option(help="A client, or a list of them, as FILE.py:NAME; else the problem's own reaction.")
    ] = None,
    samples: Annotated[int, typer.Option("--samples", "-n", help="Samples per deployment.")] = 500,
    timeout: Annotated[float, typer.Option(help="Seconds that one deployment may take.")] = 60.0,
    hold: Annotated[
        int,
        typer.Option(help="Deployments that each of two models is held for, to look for memory and drift; 0 for none."),
    ] = HOLD,
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the findings as JSON.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing.")] = False,
) -> None:
    """Shapes, gradients, the family, the reaction, memory, drift and junk; exit status 1 where something fails.

    Example: profl check shops.py:problem --client shops.py:clients
    """
    outputs.check_files(json=json_path)
    problem_object = import_object(problem)
    clients = [None] if client is None else _as_list(import_object(client))
    rows: list[dict[str, Any]] = []
    for number, one in enumerate(clients):
        findings = examine(problem_object, one, samples=samples, timeout=timeout, hold=hold)
        rows += [{"client": number, **finding._asdict()} for finding in findings]
    if json_path:
        write_json(json_path, {"findings": rows})
    if not quiet:
        console = Console()
        cells = [[str(row["client"]), row["question"], row["verdict"], row["detail"]] for row in rows]
        styles = [_COLOURS[row["verdict"]] for row in rows]
        header = ["client", "question", "verdict", "detail"]
        print_table(console, f"{problem}, {samples} samples", header, cells, header, styles=styles)
        for row in rows:
            if row["picture"]:
                for line in f"\nclient {row['client']}, {row['picture']}".split("\n"):
                    say(console, line)
    if any(row["verdict"] == "fail" for row in rows):
        raise typer.Exit(1)


def _as_list(findings: Any) -> list[Any]:
    return list(findings) if isinstance(findings, (list, tuple)) else [findings]
