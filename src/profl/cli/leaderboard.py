"""``profl leaderboard``: every method on problems that nobody has seen, as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from profl.cli import outputs
from profl.cli.console import line_width, print_table, say
from profl.cli.options import JsonPath, Quiet
from profl.results.cells import number
from profl.storage.paths import check_file, check_folder


def leaderboard(
    method: Annotated[
        list[str] | None,
        typer.Option(help="A method of your own, as FILE.py:NAME or MODULE:NAME; may be given several times."),
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="Names of the library's methods, with commas.", show_default="all")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Draw the problems of this seed again.", show_default="from entropy")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Three problems, one seed, short runs: shows the form, judges nothing.")
    ] = False,
    out: Annotated[Path, typer.Option(help="The folder of leaderboard.html and leaderboard.json.")] = Path(
        "out/leaderboard"
    ),
    force: Annotated[bool, typer.Option("--force", help="Draw anew, whatever --out holds.")] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Problems at a time, each in a process.", show_default="one per core, 4 at most; 1 with --quick"
        ),
    ] = None,
    json_path: JsonPath = None,
    quiet: Quiet = False,
) -> None:
    """All methods on sealed problems: drawn when the command runs, with equal budgets, clean and in trouble.

    The seed is printed and kept; --seed repeats the run. What is finished in --out is not run again, and a run that was
    cut off goes on.

    Example: profl leaderboard --method mine.py:make_method
    """
    from profl_papers import pieces
    from profl_papers.leaderboard import board as work
    from profl_papers.leaderboard import entries, page

    outputs.check_files(json=json_path)
    check_folder("--out", out)
    file, html, console = out / "leaderboard.json", out / "leaderboard.html", Console(stderr=True)
    for place in (file, html):
        check_file("--out", place)
    names = [] if only is None else [name.strip() for name in only.split(",") if name.strip()]
    chosen = entries.choose(names, method or [])
    board = work.open_board(file, seed, quick, force)
    if not quiet:
        say(console, f"problems of seed {board['seed']}; repeat them with --seed {board['seed']}")
    latest, interrupted = board, False

    def finished(board: dict[str, Any], done: int) -> None:
        nonlocal latest
        latest = board
        if not quiet:
            total = board["settings"]["problems"]
            say(console, f"{done} of {total} problems", width=line_width(console))

    try:
        usual = 1 if quick else min(pieces.cores(), 4)  # problems of one kind would compile the same side by side
        many = usual if workers is None else workers
        latest = work.run(board, chosen, file, workers=many, finished=finished)
    except KeyboardInterrupt:
        interrupted = True
    if not latest["problems"]:
        outputs.exit_interrupted(f"interrupted; no problem was finished; --seed {board['seed']} draws them again")
    page.write_page(latest, html)
    if json_path is not None:
        work.write(json_path, latest)
    if not quiet:
        print_standings(Console(), latest)
        say(console, f"leaderboard: {html}")
    if interrupted:
        outputs.exit_interrupted(f"interrupted; the same command goes on from {file}")


def print_standings(console: Console, board: dict[str, Any]) -> None:
    """Print the share of the gap that each method leaves under each condition, with its rank."""
    from profl_papers.leaderboard.play import CONDITIONS

    header = ["method", "deployments", *(f"{c}: {what}" for c in CONDITIONS for what in ("left", "worst", "rank"))]
    rows = []
    for row in board["standings"]:
        cells = [row["method"], number(row["deployments"])]
        for condition in CONDITIONS:
            figures = row[condition]
            place = f"{figures['rank']} ({figures['rank_low']}-{figures['rank_high']})" if "rank" in figures else "-"
            cells += [number(figures.get("left")), number(figures.get("worst")), place]
        rows.append(cells)
    say(console, f"seed {board['seed']}" + (", quick: judges nothing" if board["quick"] else ""))
    print_table(console, "share of the gap left: median, worst run, rank", header, rows, header[:1])
