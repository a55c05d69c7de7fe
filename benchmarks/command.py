"""``python -m benchmarks NAME``: measure what profl promises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks import accelerator, attacks, campaign, dynamics, jacobian, network, robust, speed, track
from benchmarks.deployments import bench as deployments
from benchmarks.wild import bench as wild
from profl import checks, cli
from profl.cli import outputs
from profl.cli.options import JsonPath, Quiet
from profl.cli.result_tables import print_item
from profl.progress import progress_bar
from profl.storage.atomic import write_json

BENCHMARKS: dict[str, tuple[Callable[..., dict[str, Any]], int]] = {
    "accelerator": (accelerator.bench, accelerator.PARTS),
    "attacks": (attacks.bench, attacks.PARTS),
    "campaign": (campaign.bench, campaign.PARTS),
    "robust": (robust.bench, robust.PARTS),
    "jacobian": (jacobian.bench, jacobian.PARTS),
    "deployments": (deployments.bench, deployments.PARTS),
    "dynamics": (dynamics.bench, dynamics.PARTS),
    "network": (network.bench, network.PARTS),
    "wild": (wild.bench, wild.PARTS),
    "speed": (speed.speed, speed.SPEED_PARTS),
    "scale": (speed.scale, speed.SCALE_PARTS),
    "memory": (speed.memory, speed.MEMORY_PARTS),
}
"""By name: the function that measures, and in how many parts it advances the progress bar."""

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def bench(
    name: Annotated[str, typer.Argument(help=f"Which benchmark: {', '.join(BENCHMARKS)}.")],
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0 on.")] = 10,
    quick: Annotated[bool, typer.Option("--quick", help="Short runs that show the form and prove nothing.")] = False,
    json_path: JsonPath = None,
    history: Annotated[
        bool, typer.Option("--history", help=f"Add a line to history.jsonl; for {', '.join(track.TRACKED)}.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Measure what profl promises, as tables and claims; exits 1 where a claim does not hold.

    Example: python -m benchmarks robust --quick
    """
    run, parts = BENCHMARKS[checks.one_of("benchmark", name, BENCHMARKS)]
    if history:
        checks.one_of("benchmark with a history", name, track.TRACKED)
    outputs.check_files(json=json_path)
    with progress_bar(f"bench {name}", parts, not quiet) as advance:
        result = run(seeds=checks.positive_int("seeds", seeds), quick=quick, advance=advance)
    if history:
        track.append(result, quick)
    if json_path is not None:
        write_json(json_path, {"items": [result]})
    if not quiet:
        print_item(Console(), result)
    if not all(claim["holds"] for claim in result["claims"]):
        raise typer.Exit(1)


def main() -> None:
    """Run the command; errors that a person can act on are one line, as those of ``profl`` are."""
    cli.main(app)
