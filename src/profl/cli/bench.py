"""``profl bench``: what profl promises, measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console

from profl import checks
from profl.cli import outputs
from profl.cli.options import JsonPath, Quiet
from profl.cli.shown import print_item
from profl.experiments import deployments, dynamics, jacobian, network, robust, speed
from profl.progress import progress_bar
from profl.storage.atomic import write_json

BENCHMARKS: dict[str, tuple[Callable[..., dict[str, Any]], int]] = {
    "robust": (robust.bench, robust.PARTS),
    "jacobian": (jacobian.bench, jacobian.PARTS),
    "deployments": (deployments.bench, deployments.PARTS),
    "dynamics": (dynamics.bench, dynamics.PARTS),
    "network": (network.bench, network.PARTS),
    "speed": (speed.speed, speed.SPEED_PARTS),
    "scale": (speed.scale, speed.SCALE_PARTS),
    "memory": (speed.memory, speed.MEMORY_PARTS),
}


def bench(
    name: Annotated[str, typer.Argument(help=f"Which benchmark: {', '.join(BENCHMARKS)}.")],
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0 on.")] = 10,
    quick: Annotated[bool, typer.Option("--quick", help="Short runs that show the form and prove nothing.")] = False,
    json_path: JsonPath = None,
    quiet: Quiet = False,
) -> None:
    """Measure what profl promises, as tables and claims; exits 1 where a claim does not hold.

    Example: profl bench robust --quick
    """
    run, parts = BENCHMARKS[checks.one_of("benchmark", name, BENCHMARKS)]
    outputs.check_files(json=json_path)
    with progress_bar(f"bench {name}", parts, not quiet) as advance:
        found = run(seeds=checks.positive_int("seeds", seeds), quick=quick, advance=advance)
    if json_path is not None:
        write_json(json_path, {"items": [found]})
    if not quiet:
        print_item(Console(), found)
    if not all(claim["holds"] for claim in found["claims"]):
        raise typer.Exit(1)
