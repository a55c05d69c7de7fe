"""``profl campaign``: deployments that take days, one command a time: new, ask, tell, skip, withdraw.

What a campaign knows is shown by the commands of ``campaign_views``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer
from rich.console import Console

from profl.checks import InputError
from profl.cli import campaign_views as views
from profl.cli import outputs
from profl.cli.campaign_open import (
    client_names,
    folder_of,
    import_problem,
    kept,
    method_of,
    method_words,
    open_again,
    shown,
    stopping,
    url_of,
)
from profl.cli.campaign_options import Database, Json, Name, ProblemSpec
from profl.cli.console import print_table, say
from profl.cli.options import Quiet
from profl.methods import ALGORITHMS
from profl.results.cells import number
from profl.storage.atomic import write_json

if TYPE_CHECKING:
    from profl.campaign import Deployments, Told

NOTHING_YET, OVER = 3, 4
"""Exit statuses of ``ask``: nothing to deploy yet, and nothing any more."""

app = typer.Typer(
    no_args_is_help=True,
    help="Deployments that take days: ask what to deploy, tell what came in, with the memory in a database.\n\n"
    "Start with `profl campaign new problem.py:problem --db prices.db --clients Basel,Bern`. Then every week "
    "`profl campaign tell --db prices.db --csv sales.csv` and `profl campaign ask --db prices.db --csv next.csv`.\n\n"
    "Exit status: 0 done, 3 nothing to ask yet, 4 the campaign is over, 2 errors.",
)

Number: TypeAlias = Annotated[int, typer.Argument(metavar="ID", help="The deployment's number.")]
Force: TypeAlias = Annotated[
    bool, typer.Option("--force", help="Take numbers that seem to be in other units than all before.")
]


@app.command()
def new(
    problem: Annotated[str, typer.Argument(help="The problem, as FILE.py:NAME or MODULE:NAME.")],
    clients: Annotated[
        str, typer.Option(help="Their names: Basel,Bern or a CSV file (its column client, else the first).")
    ],
    db: Database,
    method: Annotated[
        str, typer.Option("--method", "-a", help=f"One of {', '.join(ALGORITHMS)}; or FILE.py:NAME.")
    ] = "prm",
    deadline: Annotated[float | None, typer.Option(help="Days after which data are no longer waited for.")] = None,
    min_reports: Annotated[
        int | None, typer.Option(help="Clients that a round must have when its time is up.", show_default="1")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Nothing is asked after so many.", show_default="no limit")] = None,
    local_steps: Annotated[
        int | None, typer.Option("--local-steps", "-R", help="Deployments of a client per round.", show_default="1")
    ] = None,
    samples: Annotated[
        int | None, typer.Option("--samples", "-n", help="Rows wanted of each deployment.", show_default="500")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of what is tried at random.", show_default="0")] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Stop once what is left to gain and its error are together at most this.")
    ] = None,
    cost: Annotated[
        float | None, typer.Option(help="Stop once another deployment gains less than it costs; this is its own cost.")
    ] = None,
    learning_rate: Annotated[str | None, typer.Option(help="Of methods with one: a number, or auto.")] = None,
    window: Annotated[int | None, typer.Option(help="Deployments that a Jacobian is fitted to.")] = None,
    jacobian: Annotated[str | None, typer.Option(help="How df/dtheta is estimated.")] = None,
    filter: Annotated[str | None, typer.Option(help="Which samples to trust.")] = None,
    aggregate: Annotated[str | None, typer.Option(help="How models are combined, as in profl run.")] = None,
    share: Annotated[str | None, typer.Option(help="What clients share of how data react.")] = None,
    name: Name = None,
    json_path: Json = None,
    quiet: Quiet = False,
) -> None:
    """Make a campaign. Later commands need only --db: problem and method are kept in the database.

    Example: profl campaign new problem.py:problem --db prices.db --clients stores.csv --samples 7 --deadline 10

    Example: profl campaign new problem.py:problem --db prices.db --clients Basel,Bern --method profl --filter robust
    """
    from profl.campaign import Campaign
    from profl.campaign.log import campaign_names

    outputs.check_files(json=json_path)
    url, own = url_of(db), name or "campaign"
    folder = folder_of(url)
    known = [] if folder is not None and not Path(db.removeprefix("sqlite:///")).exists() else campaign_names(url)
    if own in known:
        raise InputError(f"there is a campaign {own!r} in {shown(db)} already: go on with it, or give another --name")
    options: dict[str, Any] = {"learning_rate": learning_rate, "window": window, "jacobian": jacobian}
    options |= {"filter": filter, "aggregate": aggregate, "share": share}
    words, stop = method_words(method, options, problem, folder), stopping(tolerance, cost)
    source = {"problem": kept(problem, folder), "method": words, "method_words": method, "stop": stop}
    from profl.methods.stopping import StopWhenSettled

    with Campaign(
        url,
        import_problem(problem),
        method_of(words, folder),
        client_names(clients),
        name=own,
        local_steps=local_steps,
        samples=samples,
        seed=seed,
        min_reports=min_reports,
        deadline=deadline,
        rounds=rounds,
        stop=None if stop is None else StopWhenSettled(**stop),
        source=source,
    ) as campaign:
        known = campaign.clients
    if json_path:
        write_json(json_path, {"campaign": own, "clients": known, "source": source})
    if not quiet:
        say(
            Console(), f"campaign {own} in {shown(db)}: {len(known)} clients. Next: profl campaign ask --db {shown(db)}"
        )


@app.command()
def ask(
    db: Database,
    csv: Annotated[Path | None, typer.Option("--csv", help="Write what to deploy to this file, for all.")] = None,
    client: Annotated[str | None, typer.Option(help="Of this client alone.")] = None,
    name: Name = None,
    problem: ProblemSpec = None,
    json_path: Json = None,
    quiet: Quiet = False,
) -> None:
    """What to deploy next; the same until it is told. Where a round is told, it ends here and the next one begins.

    Exit status 3: there is nothing yet (a client whose part of the round is told); 4: the campaign is over. The file
    of --csv is then left as it is.

    Example: profl campaign ask --db prices.db --csv next_week.csv
    """
    outputs.check_files(csv=csv, json=json_path)
    with open_again(db, name, problem) as campaign:
        deployments, status = campaign.ask(client), campaign.status()
    if csv and deployments:
        deployments.to_csv(csv)
    if json_path:
        rows = [_asked(one) for one in deployments]
        write_json(
            json_path, {"campaign": status.name, "round": status.round, "over": status.over, "deployments": rows}
        )
    console = Console()
    if deployments and not quiet:
        _print_deployments(console, deployments, status.name, csv)
    if not deployments:
        if not quiet:
            why = f"over: {status.over}" if status.over else f"nothing yet: {client}'s part of the round is told"
            say(console, f"campaign {status.name} is {why}" if status.over else why)
        raise typer.Exit(OVER if status.over else NOTHING_YET)


@app.command()
def tell(
    db: Database,
    deployment: Annotated[int | None, typer.Argument(metavar="[ID", help="The deployment's number.")] = None,
    file: Annotated[Path | None, typer.Argument(metavar="FILE.csv]", help="What it brought in.")] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="A table of many: a column deployment or client, then the data.")
    ] = None,
    force: Force = False,
    name: Name = None,
    problem: ProblemSpec = None,
    json_path: Json = None,
    quiet: Quiet = False,
) -> None:
    """What came in: of one deployment, or a table of many; all of a table is written, or nothing.

    The same data told again are harmless; other data for what is told are an error.

    Example: profl campaign tell --db prices.db --csv sales.csv

    Example: profl campaign tell --db prices.db 12 basel.csv
    """
    if (csv is None) == (deployment is None) or (deployment is None) != (file is None):
        raise InputError("tell takes either ID FILE.csv, or --csv FILE.csv with a column deployment or client")
    outputs.check_files(json=json_path)
    with open_again(db, name, problem) as campaign:
        if csv is not None:
            told = campaign.tell_frame(str(csv), check=not force)
        else:
            assert deployment is not None
            told = [campaign.tell(deployment, str(file), check=not force)]
        name = campaign.name
    if json_path:
        write_json(json_path, {"campaign": name, "told": [one._asdict() for one in told]})
    if not quiet:
        for line in told_lines(told):
            say(Console(), line)


@app.command()
def skip(
    deployment: Number,
    reason: Annotated[str, typer.Argument(help="Why, for the record.")],
    db: Database,
    name: Name = None,
    problem: ProblemSpec = None,
    json_path: Json = None,
    quiet: Quiet = False,
) -> None:
    """No data will come of a deployment: its client is left out of this round.

    Example: profl campaign skip --db prices.db 12 "closed for repairs"
    """
    _end("skip", deployment, reason, db, name, problem, json_path, quiet)


@app.command()
def withdraw(
    deployment: Number,
    db: Database,
    reason: Annotated[str, typer.Argument(help="Why, for the record.")] = "never put to use",
    name: Name = None,
    problem: ProblemSpec = None,
    json_path: Json = None,
    quiet: Quiet = False,
) -> None:
    """A model was never put to use, so nothing came of it: its client is left out of this round.

    Example: profl campaign withdraw --db prices.db 12 "the labels were not printed"
    """
    _end("withdraw", deployment, reason, db, name, problem, json_path, quiet)


def _end(
    kind: str,
    deployment: int,
    reason: str,
    db: str,
    name: str | None,
    problem: str | None,
    json_path: Path | None,
    quiet: bool,
) -> None:
    outputs.check_files(json=json_path)
    with open_again(db, name, problem) as campaign:
        getattr(campaign, kind)(deployment, reason)
        name = campaign.name
    if json_path:
        write_json(json_path, {"campaign": name, kind: {"deployment": deployment, "reason": reason}})
    if not quiet:
        say(Console(), f"deployment {deployment}: {'skipped' if kind == 'skip' else 'withdrawn'}, {reason}")


def told_lines(told: list[Told]) -> list[str]:
    """What was written, in a sentence or two."""
    fresh, again = [one for one in told if not one.again], [one for one in told if one.again]
    rows, missing = sum(one.rows for one in fresh), sum(one.missing for one in fresh)
    left = f", {missing:,} rows with missing cells left out" if missing else ""
    lines = [f"told {len(fresh)} deployments: {rows:,} rows{left}"] if fresh else []
    return lines + ([f"{len(again)} had been told before with the same data: nothing was written"] if again else [])


def _asked(one: Any) -> dict[str, Any]:
    """A deployment for JSON."""
    until = None if one.until is None else one.until.isoformat()
    words = {key: getattr(one, key) for key in ("client", "purpose", "samples", "round", "step")}
    return {"deployment": one.id, **words, "since": one.since.isoformat(), "until": until, "model": one.table}


def _print_deployments(console: Console, deployments: Deployments, name: str, csv: Path | None) -> None:
    """A table of all; where they are in a file, a line."""
    if csv:
        say(console, f"{len(deployments)} deployments of round {deployments[0].round} are in {csv}")
        return
    rows = [
        [str(one.id), one.client, one.purpose, f"{one.until:%Y-%m-%d}" if one.until else "-"]
        + [number(value) for value in one.table.values()]
        for one in deployments
    ]
    header = ["deployment", "client", "purpose", "until", *deployments[0].table]
    print_table(console, f"{name}, round {deployments[0].round}", header, rows, ["client", "purpose", "until"])


for _name, _command in views.COMMANDS.items():
    app.command(_name)(_command)
