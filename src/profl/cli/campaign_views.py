"""``profl campaign``: what a campaign knows. ``list``, ``status`` and ``events`` read the log and compile nothing."""

from __future__ import annotations

import csv as comma_separated
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from profl.checks import InputError
from profl.cli import outputs
from profl.cli.campaign_open import name_of, open_again, shown, url_of
from profl.cli.campaign_options import Database, Json, Name, ProblemSpec
from profl.cli.console import line_width, print_table, say
from profl.cli.options import Quiet
from profl.storage.atomic import atomic, write_json
from profl.storage.paths import check_file

if TYPE_CHECKING:
    from profl.campaign.journal import Journal
    from profl.campaign.report import Report

LogOnly = Annotated[
    bool,
    typer.Option("--log-only", help="From the log alone: without ranges of risk and slopes, but nothing is compiled."),
]


def list_(db: Database, json_path: Json = None, quiet: Quiet = False) -> None:
    """The campaigns of a database.

    Example: profl campaign list --db prices.db
    """
    from profl.campaign.log import campaign_names
    from profl.campaign.status import status_of

    outputs.check_files(json=json_path)
    rows = []
    for name in campaign_names(url_of(db)):
        _, journal = _journal(db, name)
        status = status_of(journal, name)
        rows.append({"name": name, "round": status.round, "clients": status.clients, "told": status.deployments})
        rows[-1] |= {"rows": status.rows, "waiting": len(status.waiting), "over": status.over}
        journal.store.close()
    if json_path:
        write_json(json_path, {"campaigns": rows})
    if not quiet:
        head = ["name", "round", "clients", "told", "rows", "waiting", "over"]
        print_table(
            Console(), f"campaigns in {shown(db)}", head, [list(map(str, row.values())) for row in rows], ["over"]
        )


def status(db: Database, name: Name = None, json_path: Json = None, quiet: Quiet = False) -> None:
    """Where a campaign stands: what is awaited, what is overdue, what came in, the risk, incidents.

    Example: profl campaign status --db prices.db
    """
    from profl.campaign.status import status_of

    outputs.check_files(json=json_path)
    name, journal = _journal(db, name)
    found = status_of(journal, name)
    journal.store.close()
    if json_path:
        waiting = [one._asdict() for one in found.waiting]
        write_json(json_path, {"campaign": found.name, **found._asdict(), "waiting": waiting})
    if not quiet:
        console = Console()
        for line in str(found).splitlines():
            say(console, line, width=line_width(console))


def events(
    db: Database,
    csv: Annotated[Path | None, typer.Option("--csv", help="Write them to this file.")] = None,
    name: Name = None,
    json_path: Json = None,
    quiet: Quiet = False,
) -> None:
    """The log: what happened, when, in order. It is checked as it is read: each event holds the hash of those before.

    Example: profl campaign events --db prices.db --csv log.csv
    """
    outputs.check_files(csv=csv, json=json_path)
    name, journal = _journal(db, name)
    rows = [event._asdict() for event in journal.events]
    journal.store.close()
    if json_path:
        write_json(json_path, {"campaign": name, "events": rows})
    if csv:
        with atomic(csv) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
            writer = comma_separated.writer(file)
            writer.writerow(["seq", "at", "kind", "deployment", "client", "body"])
            writer.writerows([*_event_cells(journal, row), json.dumps(row["body"], sort_keys=True)] for row in rows)
    if not quiet and not csv:
        cells = [[*_event_cells(journal, row), _said(row)] for row in rows]
        head = ["seq", "at", "kind", "deployment", "client", "what"]
        print_table(Console(), f"{name}, {len(rows)} events", head, cells, ["at", "kind", "client", "what"])


def forecast(
    db: Database,
    level: Annotated[float, typer.Option(help="Probability with which each interval holds the truth.")] = 0.9,
    name: Name = None,
    problem: ProblemSpec = None,
    json_path: Json = None,
    quiet: Quiet = False,
) -> None:
    """What is left to gain with everything that was told, and whether to stop; a round that is told ends here.

    Example: profl campaign forecast --db prices.db
    """
    outputs.check_files(json=json_path)
    with open_again(db, name, problem) as campaign:
        expected, intervals, name = campaign.forecast(), campaign.forecast(level), campaign.name
    if json_path:
        stated = None if expected is None else expected._asdict()
        known = None if intervals is None else intervals.plain()
        write_json(json_path, {"campaign": name, "forecast": stated, "intervals": known})
    if not quiet:
        console = Console()
        say(console, "the method states no forecast" if expected is None else str(expected))
        for line in [] if intervals is None else str(intervals).splitlines():
            say(console, line, width=line_width(console))


def run(
    db: Database,
    save: Annotated[
        Path | None, typer.Option("--save", help="Save it to this file; read it back with profl.load.")
    ] = None,
    name: Name = None,
    problem: ProblemSpec = None,
    json_path: Json = None,
    quiet: Quiet = False,
) -> None:
    """What was done so far as a run: a summary, and with --save a file for profl.load. A round that is told ends here.

    Example: profl campaign run --db prices.db --save prices.npz
    """
    outputs.check_files(save=save, json=json_path)
    with open_again(db, name, problem) as campaign:
        result = campaign.run()
    if save:
        result.save(save)
    outputs.write_runs(json_path, "campaign run", [result])
    if not quiet:
        console = Console()
        for line in result.summary().splitlines():
            say(console, line, width=line_width(console))


def plot(
    db: Database,
    out: Annotated[Path, typer.Option("--out", help="The picture (.png, .svg, .pdf).")],
    name: Name = None,
    problem: ProblemSpec = None,
    log_only: LogOnly = False,
    quiet: Quiet = False,
) -> None:
    """A picture: the models round by round and at every client, the estimated risk, what is left to gain.

    Example: profl campaign plot --db prices.db --out prices.png
    """
    outputs.check_files(out=out)
    report = _report(db, name, problem, log_only)
    from profl.campaign.plot import plot_report

    plot_report(report, out)
    if not quiet:
        say(Console(), f"{report.status.name}, {len(report.rounds)} rounds: {out}")


def page(
    db: Database,
    out: Annotated[Path, typer.Option("--out", help="The page (.html): one file that needs no network.")],
    name: Name = None,
    problem: ProblemSpec = None,
    log_only: LogOnly = False,
    quiet: Quiet = False,
) -> None:
    """One HTML file: what is deployed where, what came in, what was learned, what is left to gain, incidents.

    It changes nothing: a round that is told ends with the next ask.

    Example: profl campaign page --db prices.db --out page.html
    """
    check_file("--out", out)
    report = _report(db, name, problem, log_only)
    from profl.campaign.page import write_page

    write_page(report, out)
    if not quiet:
        say(Console(), f"{report.status.name}, {len(report.rounds)} rounds: {out}")


def serve(
    db: Database,
    host: Annotated[str, typer.Option(help="Where to listen; anything but loopback lets others in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 for any that is free.")] = 0,
    max_megabytes: Annotated[int, typer.Option(help="The largest file that is taken.")] = 50,
    name: Name = None,
    problem: ProblemSpec = None,
) -> None:
    """The page, live, with a form for this week's data and next week's models. The address has a secret: keep it so.

    Example: profl campaign serve --db prices.db
    """
    with open_again(db, name, problem) as campaign:
        from profl.campaign.serve import serve_campaign

        serve_campaign(campaign, host, port, max_megabytes, lambda line: say(Console(), line))


COMMANDS: dict[str, Callable[..., None]] = {
    "status": status,
    "forecast": forecast,
    "page": page,
    "serve": serve,
    "plot": plot,
    "run": run,
    "events": events,
    "list": list_,
}


def _journal(db: str, name: str | None) -> tuple[str, Journal]:
    """(the campaign's name, its log)."""
    from profl.campaign.log import read_log

    url = url_of(db)
    name = name_of(url, name)
    return name, read_log(url, name)


def _report(db: str, name: str | None, problem: str | None, log_only: bool) -> Report:
    """The figures of a campaign, with what its problem adds unless only the log is to be read."""
    from profl.campaign.report import make_report

    if log_only:
        name, journal = _journal(db, name)
        report = make_report(journal, name)
        journal.store.close()
        return report
    try:
        campaign = open_again(db, name, problem)
    except InputError as error:
        raise InputError(f"{error}; --log-only needs no problem") from error
    with campaign:
        return campaign.report()


def _event_cells(journal: Journal, row: dict[str, Any]) -> list[str]:
    number = row["deployment"]
    client = journal.ledger.entries[number].client if number is not None else ""
    return [
        str(row["seq"]),
        row["at"][:19].replace("T", " "),
        row["kind"],
        "" if number is None else str(number),
        client,
    ]


def _said(row: dict[str, Any]) -> str:
    """An event in a few words."""
    body = row["body"]
    words = {
        "opened": lambda: f"{len(body['settings']['clients'])} clients",
        "history": lambda: f"{body['deployments']:,} past deployments, {body['rows']:,} rows",
        "asked": lambda: f"round {body['round'] + 1}, {body['purpose']}",
        "told": lambda: f"{body['rows']:,} rows",
        "closed": lambda: f"round {body['round']}, {body['reports']} reports, {len(body['incidents'])} incidents",
    }
    return words[row["kind"]]() if row["kind"] in words else str(body.get("reason", ""))
