"""``profl history``: what past deployments say, and whether an experiment pays."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console

from profl.cli import outputs
from profl.cli.campaign_open import import_problem
from profl.cli.console import line_width, print_table, say
from profl.cli.options import Quiet
from profl.results.cells import number
from profl.storage.atomic import write_json

if TYPE_CHECKING:
    from profl.campaign.prospects import Prospects


def history(
    problem: Annotated[str, typer.Argument(help="The problem, as FILE.py:NAME or MODULE:NAME.")],
    csv: Annotated[Path, typer.Argument(help="A row per sample: client, week, the model's numbers, the sample's.")],
    covariates: Annotated[
        str, typer.Option(help="Columns of what else moved models and data together: promotion,feature.")
    ] = "",
    belief: Annotated[float, typer.Option(help="Standard deviation of a slope's bias, as a share of its size.")] = 0.3,
    period_effects: Annotated[bool, typer.Option(help="Remove what moves all clients in a period alike.")] = True,
    follows: Annotated[int, typer.Option(help="Deployments after an experiment, over which it must pay.")] = 52,
    by_client: Annotated[bool, typer.Option("--by-client", help="Also show every client's own slopes.")] = False,
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the figures as JSON.")] = None,
    quiet: Quiet = False,
) -> None:
    """Slopes with 95 % intervals, the optimum by them, and what 5, 10 and 30 planned deployments would gain and cost.

    Example: profl history problem.py:problem weeks.csv --covariates promotion --json history.json
    """
    from profl import checks
    from profl.campaign.names import names_of
    from profl.campaign.past import check_model_units, fit_table, read_table
    from profl.campaign.prospects import prospects, slope_error
    from profl.campaign.readings import read_csv
    from profl.campaign.setting_up import as_world
    from profl.problem.live import LiveProblem
    from profl.run.plan import batch_shape_of

    outputs.check_files(json=json_path)
    stated, frame = import_problem(problem), read_csv(csv)
    checks.positive_int("follows", follows)
    if "client" not in frame.columns:
        raise checks.InputError(f"{csv} needs a column client; there are: {', '.join(map(str, frame.columns))}")
    clients = {str(name): i for i, name in enumerate(dict.fromkeys(frame["client"].dropna().astype(str)))}
    world = as_world(stated, len(clients))
    called, stated_columns = (stated.names, stated.columns) if isinstance(stated, LiveProblem) else (None, None)
    names = names_of(_first_model(world), called)
    columns = None if stated_columns is None else names_of(_sample(world), stated_columns, "columns")
    chosen = [name.strip() for name in covariates.split(",") if name.strip()]
    table = read_table(frame, clients, names, batch_shape_of(world), world.family, columns, chosen)
    check_model_units(world, table)
    past = fit_table(world, table, names, belief, period_effects)
    found, (by_data, with_bias) = prospects(world, table, past, follows), slope_error(past)
    p, s = past.pooled.shape
    inputs = names if len(names) == s else [f"signal[{j}]" for j in range(s)]
    answers = table.columns if len(table.columns) == p else [f"f[{k}]" for k in range(p)]
    slopes = [
        {
            "of": answers[k],
            "by": inputs[j],
            "slope": past.pooled[k, j],
            "interval": [past.pooled[k, j] - by_data[k, j], past.pooled[k, j] + by_data[k, j]],
            "with_bias": [past.pooled[k, j] - with_bias[k, j], past.pooled[k, j] + with_bias[k, j]],
            "clients": {
                name: {"slope": past.slope[i, k, j], "error": np.sqrt(past.variance[i, k, j])}
                for name, i in clients.items()
            },
        }
        for k in range(p)
        for j in range(s)
    ]
    optimum = [
        {
            "name": name,
            "now": found.present[k],
            "optimum": found.optimum[k],
            "error": found.error[k],
            "held": bool(found.held[k]),
            "seen": found.seen[:, k].tolist(),
        }
        for k, name in enumerate(names)
    ]
    if json_path:
        write_json(
            json_path,
            {
                "deployments": past.rows,
                "clients": list(clients),
                "belief": belief,
                "slopes": slopes,
                "optimum": optimum,
                "gain": found.gain,
                "gain_error": found.gain_error,
                "excess": found.excess,
                "follows": follows,
                "experiments": [one._asdict() for one in found.experiments],
            },
        )
    if not quiet:
        _print(Console(), slopes, optimum, found, f"{past.rows} past deployments of {len(clients)} clients", by_client)


def _print(
    console: Console,
    slopes: list[dict[str, Any]],
    optimum: list[dict[str, Any]],
    found: Prospects,
    title: str,
    by_client: bool,
) -> None:
    """The tables, and what follows in words."""

    def interval(ends: Any) -> str:
        return f"{number(ends[0])} to {number(ends[1])}"

    rows = [
        [one["of"], one["by"], number(one["slope"]), interval(one["interval"]), interval(one["with_bias"])]
        for one in slopes
    ]
    head = ["slope of", "by", "all clients", "95 % interval", "with the bias believed"]
    print_table(console, title, head, rows, ["slope of", "by"])
    if by_client:
        rows = [
            [name, one["of"], one["by"], number(own["slope"]), number(own["error"])]
            for one in slopes
            for name, own in one["clients"].items()
        ]
        head = ["client", "slope of", "by", "its own", "error"]
        print_table(console, "every client by itself", head, sorted(rows, key=lambda row: row[0]), head[:3])
    rows = [
        [
            one["name"],
            number(one["now"]),
            number(one["optimum"]),
            "held" if one["held"] else number(one["error"]),
            interval(one["seen"]),
        ]
        for one in optimum
    ]
    print_table(console, "the optimum by the history", ["", "now", "optimum", "error", "seen"], rows, [""])
    rows = [[str(one.deployments), number(one.gain), number(one.cost), number(one.net)] for one in found.experiments]
    head = ["deployments", "gain each", "cost", f"net over {found.follows}"]
    print_table(console, "an experiment", head, rows)
    width = line_width(console)
    gained = f"{number(found.gain)} (error {number(found.gain_error)})"
    say(console, f"The optimum by the history gains {gained} a deployment beside the present model.", width=width)
    say(console, f"It is expected to be {number(found.excess)} above the true one.", width=width)
    best = found.pays
    verdict = "No experiment pays." if best is None else f"An experiment of {best.deployments} deployments pays best."
    say(console, verdict, width=width)
    outside = [one["name"] for one in optimum if not one["seen"][0] <= one["optimum"] <= one["seen"][1]]
    if outside:
        say(console, f"Outside what was seen, a guess by straight lines: {', '.join(outside)}.", width=width)


def _first_model(problem: Any) -> Any:
    from profl import trees

    return trees.take(trees.to_device(problem.initial_models((0,))), 0)


def _sample(problem: Any) -> Any:
    from profl import trees
    from profl.run.plan import batch_shape_of

    return trees.row_shape(batch_shape_of(problem))
