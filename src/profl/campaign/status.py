"""Where a campaign stands, as one table: from its log alone, nothing is computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from profl.campaign.journal import Journal
from profl.methods.method import Forecast
from profl.methods.stopping import REASONS, StopWhenSettled
from profl.results.cells import number

SHOWN = 20
"""Rows of each table of a status that is shown as text."""


class Waiting(NamedTuple):
    """A deployment whose data are awaited."""

    id: int
    client: str
    purpose: str
    since: str
    until: str | None
    overdue: bool


class Status(NamedTuple):
    """Where a campaign stands."""

    name: str
    round: int  # the one under way, from 1 on
    clients: int
    told: int  # deployments of this round that were told
    absent: dict[str, str]  # client: why it is out of this round
    waiting: list[Waiting]
    deployments: int  # told so far, in all rounds
    rows: int
    risk: list[float | None]  # the estimated risk of each closed round
    forecast: list[float] | None  # expected excess, its error, gain and price of another deployment; of the last round
    incidents: list[tuple[int, str, str]]  # (round, client, what)
    over: str  # why nothing more is asked; "" where it goes on
    outcomes: list[tuple[str, float | None, float | None]] = []  # noqa: RUF012  each limit, its estimate and the error

    @property
    def overdue(self) -> list[Waiting]:
        return [one for one in self.waiting if one.overdue]

    def __str__(self) -> str:
        lines = [f"campaign {self.name}: round {self.round}, {self.clients} clients"]
        lines += [f"  over: {self.over}"] if self.over else []
        lines += [f"  told in this round {self.told}, waiting for {len(self.waiting)}, overdue {len(self.overdue)}"]
        lines += [f"  told so far {self.deployments} deployments, {self.rows:,} rows, {len(self.risk)} rounds closed"]
        if self.risk:
            lines.append(
                f"  estimated risk {number(self.risk[-1])} in the last round, {number(self.risk[0])} in the first"
            )
        if self.forecast:
            excess, error = self.forecast[:2]
            lines.append(f"  left to gain about {number(excess)} +- {number(error)}")
        for limit, value, its_error in self.outcomes:
            known = "not known yet" if value is None else f"about {number(value)} +- {number(its_error)}"
            lines.append(f"  limit {limit}: {known}")
        if self.waiting:
            open_ = [(str(w.id), w.client, w.purpose, w.since[:10], (w.until or "-")[:10]) for w in self.waiting]
            lines += ["", *_table(("id", "client", "purpose", "since", "due"), open_)]
        if self.absent:
            lines += ["", *_table(("not in this round", "why"), list(self.absent.items()))]
        if self.incidents:
            newest = [(str(round_), client, what) for round_, client, what in self.incidents[-SHOWN:]]
            lines += ["", *_table(("round", "client", "incident"), newest)]
        return "\n".join(lines)


def status_of(journal: Journal, name: str) -> Status:
    """The status of a campaign whose journal is up to date."""
    ledger, now = journal.ledger, journal.clock()
    told = [entry for entry in ledger.entries.values() if entry.state == "told"]
    last = ledger.closed[-1].body if ledger.closed else {}
    return Status(
        name=name,
        round=ledger.round + 1,
        clients=len(journal.clients),
        told=sum(ledger.told().values()),
        absent=ledger.absent(),
        waiting=[
            Waiting(entry.id, entry.client, entry.purpose, entry.since, entry.until, entry.overdue(now))
            for entry in ledger.open
        ],
        deployments=len(told),
        rows=sum(entry.ended.body["rows"] for entry in told if entry.ended is not None),
        risk=[event.body["risk"] for event in ledger.closed],
        forecast=last.get("forecast"),
        incidents=[tuple(incident) for event in ledger.closed for incident in event.body["incidents"]],
        over=journal.why_over(),
        outcomes=[tuple(row) for row in last.get("outcomes", [])],
    )


class Expected(NamedTuple):
    """What the method expects: L(theta) - L(PO) of its newest model, and what another deployment would change."""

    excess: float
    error: float  # standard error of that
    gain: float  # what one more deployment is expected to take off the excess
    price: float  # what it is expected to lose by trying something else
    stop: str  # why to stop; "" to go on

    def __str__(self) -> str:
        more = "go on: another deployment is expected to gain more than it costs"
        advice = f"stop: {self.stop}" if self.stop else more
        return (
            f"left to gain {number(self.excess)} +- {number(self.error)} a sample; another deployment gains "
            f"{number(self.gain)} and costs {number(self.price)}; {advice}"
        )


def expected_of(forecast: Forecast | None, rule: StopWhenSettled | None, deployments: int) -> Expected | None:
    """The forecast with what it advises: by the campaign's own rule, or by the usual one."""
    if forecast is None:
        return None
    why = int((rule or StopWhenSettled()).why(forecast, deployments))
    excess, error, gain, price = (float(figure) for figure in forecast)
    return Expected(excess, error, gain, price, REASONS.get(why, ""))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned lines; what is beyond ``SHOWN`` rows is counted."""
    shown = [head, *rows[:SHOWN]]
    widths = [max(len(row[i]) for row in shown) for i in range(len(head))]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in shown]
    lines = [f"  {'  '.join(row)}".rstrip() for row in padded]
    return lines + ([f"  and {len(rows) - SHOWN} more"] if len(rows) > SHOWN else [])
