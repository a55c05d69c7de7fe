"""``profl reproduce`` and ``profl report``: the paper's evaluation from scratch, and as one page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console

from profl.cli import outputs
from profl.cli.builders import parse_seeds
from profl.cli.console import line_width, print_table, say
from profl.cli.options import JsonPath, Quiet
from profl.cli.result_tables import print_claims, print_item
from profl.results.cells import cell, changes_note, claims_summary, verdict
from profl.storage.paths import check_folder

if TYPE_CHECKING:
    from profl_papers.item import Item

QUICK_SEEDS = "0-1"


def reproduce(
    items: Annotated[
        list[str] | None,
        typer.Argument(help="A paper (profl2024), an item (table1), or all; --list names them.", show_default="all"),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="One seed (3), a list (0,1,5) or a range.", show_default="0-9; 0-1 with --quick"),
    ] = None,
    literal: Annotated[
        bool, typer.Option("--literal", help="The ProFL paper's items as printed too, both forms side by side.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Two seeds, short runs: shows the form, proves nothing.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Keep one JSON file per item in this directory.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Run items again that --out or --json already holds.")] = False,
    workers: Annotated[
        int | None, typer.Option(help="Items run at a time, each in a process.", show_default="one per core, 4 at most")
    ] = None,
    list_only: Annotated[
        bool, typer.Option("--list", help="Show the items and the data they need; run nothing.")
    ] = False,
    json_path: JsonPath = None,
    quiet: Quiet = False,
) -> None:
    """Tables and figures of the paper and of the field's, redone; exits 1 where a claim does not hold.

    A claim holds, or holds in direction but far from the printed figure, or does not hold. With --out or --json a run
    that was cut off goes on where it was, and what is finished is not run again. With --literal the ProFL paper's items
    run twice: with profl's own parts, and with Algorithm 1 and 2 as printed at the paper's parameters; the exit code is
    that of the former.

    Example: profl reproduce all --out out/paper
    """
    from profl_papers import pieces
    from profl_papers import reproduce as work
    from profl_papers.profl2024.printed import WORK

    chosen = work.choose(items or [], literal)
    if list_only:
        print_items(Console(), chosen)
        return
    outputs.check_files(json=json_path)
    check_folder("--out", out)
    settings = Settings(
        parse_seeds((QUICK_SEEDS if quick else "0-9") if seeds is None else seeds),
        quick=quick,
        out=out,
        force=force,
        workers=min(pieces.cores(), 4) if workers is None else workers,
    )
    results, interrupted = run_items(chosen, settings, json_path, quiet)
    if out is not None:
        write_pages(out, Console(stderr=True), quiet)
    if json_path is not None:
        work.write(json_path, {"items": results})
    if not quiet:
        print_results(Console(), results)
    if interrupted:
        note = outputs.saved_files_note([path for path in (out, json_path) if path is not None])
        outputs.exit_interrupted(f"interrupted; {len(results)} of {len(chosen)} items were finished; {note}")
    judged = [result for result in results if not (literal and result["work"] == WORK)]
    if not all(claim["holds"] for result in judged for claim in result["claims"]):
        raise typer.Exit(1)


class Settings(NamedTuple):
    """How items are run: the arguments of ``profl_papers.reproduce.reproduce``."""

    seeds: Sequence[int]
    quick: bool
    out: Path | None
    force: bool
    workers: int


def run_items(
    items: Sequence[Item], settings: Settings, file: Path | None, quiet: bool
) -> tuple[list[dict[str, Any]], bool]:
    """(the results in the order of the items, whether Ctrl-C ended it); exits if no item was finished."""
    from profl_papers import reproduce as work

    console, interrupted = Console(stderr=True), False
    results: dict[str, dict[str, Any]] = {}

    def finished(result: dict[str, Any], reused: bool) -> None:
        results[result["item"]] = result
        if not quiet:
            line = f"{len(results)} of {len(items)}  {progress_line(result, reused)}"
            say(console, line, width=line_width(console))

    try:
        work.reproduce(
            items,
            settings.seeds,
            quick=settings.quick,
            out=settings.out,
            file=file,
            force=settings.force,
            workers=settings.workers,
            finished=finished,
        )
    except KeyboardInterrupt:
        interrupted = True
    if not results:
        outputs.exit_interrupted("interrupted; no item was finished")
    return [results[item.name] for item in items if item.name in results], interrupted


def report(
    directory: Annotated[Path, typer.Argument(help="Where `profl reproduce --out` put its results.")],
    quiet: Quiet = False,
) -> None:
    """One page (report.html) and pictures (figures/*.png, .svg, .pdf) from results that are there.

    Example: profl report out/paper
    """
    write_pages(directory, Console(stderr=True), quiet)


def write_pages(directory: Path, console: Console, quiet: bool) -> None:
    """Write the page with all results of the directory, and the pictures of new ones."""
    from profl_papers import pages
    from profl_papers import reproduce as work

    results = work.read_all(directory)
    try:
        pages.write_pictures(directory, results)
    except ImportError as error:
        say(console, f"no pictures: {error}")
    page = pages.write(directory, results)
    if not quiet:
        say(console, f"report: {page}")


def progress_line(result: dict[str, Any], reused: bool) -> str:
    """One line on a finished item."""
    when = "kept" if reused else f"{result['seconds']:.1f} s"
    return f"{result['item']}: {claims_summary(result['claims'])} ({when})"


def print_items(console: Console, items: Sequence[Item]) -> None:
    """Print every item with its paper and the data it needs."""
    header = ["item", "paper", "what it shows", "needs"]
    rows = [[item.name, item.work, item.title, ", ".join(item.data)] for item in items]
    print_table(console, "items", header, rows, header)
    say(console, f"{len(items)} items; --workers runs several at a time")


def print_results(console: Console, results: list[dict[str, Any]]) -> None:
    """Print one item in full; several as one table of claims, followed by a count per paper and the failures."""
    from profl_papers.both_forms import side_by_side

    if len(results) == 1:
        print_item(console, results[0])
        return
    if pairs := side_by_side(results):
        header = list(pairs[0])
        print_table(console, "ours and as printed", header, [list(map(cell, pair.values())) for pair in pairs], header)
    else:
        print_claims(console, results)
    claims = [(result, claim) for result in results for claim in result["claims"]]
    for name in dict.fromkeys(result["work"] for result in results):
        say(console, f"{name}: {claims_summary(claim for result, claim in claims if result['work'] == name)}")
    seconds = sum(result["seconds"] for result in results)
    say(console, f"in all: {claims_summary(claim for _, claim in claims)}; {seconds:.0f} s over all items")
    width = line_width(console)
    for result, claim in claims:
        name, verdict_text = f"{result['item']}: {claim['claim']}", verdict(claim)
        if verdict_text == "no":
            say(console, f"does not hold: {name}", "red", width)
        elif verdict_text != "yes":
            say(console, f"{verdict_text}: {name}", "yellow", width)
    for result in results:
        if result["changed"]:
            say(console, f"{result['item']}: {changes_note(result)}", "yellow", width)
