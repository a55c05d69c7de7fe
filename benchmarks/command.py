"""``python -m benchmarks NAME``: measure what profl promises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import (
    ablations,
    accelerator,
    analyst,
    attacks,
    campaign,
    dynamics,
    jacobian,
    network,
    robust,
    speed,
    track,
)
from benchmarks.bench import Bench, Done, run
from benchmarks.deployments import bench as deployments
from benchmarks.rivals import bench as rivals
from benchmarks.wild import bench as wild
from profl import checks, cli
from profl.cli import outputs
from profl.cli.console import line_width, say
from profl.cli.options import JsonPath, Quiet
from profl.cli.result_tables import print_item
from profl.results.cells import claims_summary
from profl_papers import pieces

BENCHMARKS: dict[str, Callable[[int, bool], Bench]] = {
    "ablations": ablations.bench,
    "accelerator": accelerator.bench,
    "analyst": analyst.bench,
    "attacks": attacks.bench,
    "campaign": campaign.bench,
    "robust": robust.bench,
    "jacobian": jacobian.bench,
    "deployments": deployments.bench,
    "dynamics": dynamics.bench,
    "network": network.bench,
    "rivals": rivals.bench,
    "wild": wild.bench,
    "speed": speed.speed,
    "scale": speed.scale,
    "memory": speed.memory,
}
"""By name: the function that lists the parts, of a number of seeds, and whether in short."""

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def bench(
    name: Annotated[str, typer.Argument(help=f"Which benchmark: {', '.join(BENCHMARKS)}.")],
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0 on.")] = 10,
    quick: Annotated[bool, typer.Option("--quick", help="Short runs that show the form and prove nothing.")] = False,
    json_path: JsonPath = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run again what the file of --json holds.")] = False,
    workers: Annotated[
        int | None, typer.Option(help="Parts run at a time, each in a process.", show_default="one per core, 4 at most")
    ] = None,
    history: Annotated[
        bool, typer.Option("--history", help=f"Add a line to history.jsonl; for {', '.join(track.TRACKED)}.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Measure what profl promises, as tables and claims; exits 1 where a claim does not hold.

    With --json a run that was cut off goes on where it was. A line on stderr tells of every part that is finished.

    Example: python -m benchmarks robust --quick
    """
    work = BENCHMARKS[checks.one_of("benchmark", name, BENCHMARKS)](checks.positive_int("seeds", seeds), quick)
    if history:
        checks.one_of("benchmark with a history", name, track.TRACKED)
    most = min(pieces.cores(), 4) if workers is None else checks.positive_int("workers", workers)
    outputs.check_files(json=json_path)
    code = pieces.source("profl", "profl_papers", "benchmarks")
    stated = {"item": name, "seeds": seeds, "quick": quick, "source": code}
    progress, finished = Console(stderr=True), 0

    def tell(part: str, done: Done, count: int, total: int) -> None:
        nonlocal finished
        finished = count
        if not quiet:
            found = claims_summary(done.claims) if done.claims else f"{len(done.rows)} rows"
            say(progress, f"{count} of {total}  {part}: {found} ({done.seconds:.1f} s)", width=line_width(progress))

    try:
        result = run(stated, work, json_path, fresh, most, tell)
    except KeyboardInterrupt:
        kept = "no file was asked for" if json_path is None else f"the same command goes on from {json_path}"
        outputs.exit_interrupted(f"interrupted; {finished} parts were finished; {kept}")
    if history:
        track.append(result, quick)
    if not quiet:
        print_item(Console(), result)
    if not all(claim["holds"] for claim in result["claims"]):
        raise typer.Exit(1)


def main() -> None:
    """Run the command; errors that a person can act on are one line, as those of ``profl`` are."""
    cli.main(app)
