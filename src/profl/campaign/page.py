"""A campaign as one HTML page: what is deployed where, what came in, what was learned, what is left to gain.

The page is one file. Its style, its script and its figures are written into it: it needs no network and can be mailed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

import numpy as np

from profl.campaign.charts import Chart, Line, embedded, figure
from profl.campaign.report import Report
from profl.results.cells import number
from profl.storage.atomic import atomic

MOST_NUMBERS = 24
"""Numbers of a model that are drawn, one chart each; a table has them all."""
MOST_LINES = 120
"""Clients that are drawn as lines; of more there is a band from the lowest to the highest."""
TWO_SIDED = 1.96
"""Standard errors to both sides that hold what is true 95 times of 100."""


def write_page(report: Report, path: str | os.PathLike[str]) -> None:
    """Write the page, whole or not at all."""
    with atomic(path) as temporary:
        temporary.write_text(page(report), encoding="utf-8")


def page(report: Report, forms: str = "") -> str:
    """The whole page as HTML; ``forms`` stand first on a page that is served."""
    name = escape(report.status.name)
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            '<link rel="icon" href="data:,">',
            f"<title>{name}: round {report.status.round}</title>",
            f"<style>{_asset('page.css')}</style></head><body>",
            _head(report),
            forms,
            _deployed(report),
            _models(report),
            _risk(report),
            _intervals(report),
            _learned(report),
            _came_in(report),
            _incidents(report),
            f"<script>{_asset('page.js')}</script>",
            "</body></html>\n",
        ]
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: int, marks: Sequence[str] = ()) -> str:
    """A table that scrolls in a box of its own; the last ``numbers`` columns are numbers, ``marks`` name its rows."""
    first = len(head) - numbers

    def cells(row: Sequence[str], kind: str) -> str:
        return "".join(f"<{kind}{' class=number' if i >= first else ''}>{cell}</{kind}>" for i, cell in enumerate(row))

    lines = [
        f"<tr{f' data-client={chr(34)}{escape(marks[i])}{chr(34)}' if marks else ''}>{cells(row, 'td')}</tr>"
        for i, row in enumerate(rows)
    ]
    top = cells([escape(text) for text in head], "th")
    return (
        '<div class="scroll" tabindex="0"><table><thead><tr>'
        f"{top}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _head(report: Report) -> str:
    status, expected = report.status, report.expected
    late = len(status.overdue)
    overdue = f'<small class="late">{late} overdue</small>' if late else "<small>none overdue</small>"
    facts = [
        ("round", f"{status.round}<small>{len(report.rounds)} closed</small>"),
        ("deployments out", f"{len(status.waiting)}{overdue}"),
        ("told", f"{status.deployments:,}<small>{status.rows:,} rows, {status.clients} clients</small>"),
    ]
    if report.rounds:
        facts.append(
            (
                "estimated risk",
                f"{number(report.rounds[-1].risk)}<small>{number(report.rounds[0].risk)} in the first round</small>",
            )
        )
    if expected:
        facts.append(("left to gain", f"{number(expected.excess)}<small>± {number(expected.error)} a sample</small>"))
    made = " · ".join(
        escape(str(report.source[key]).rpartition("/")[2])
        for key in ("problem", "method_words")
        if key in report.source
    )
    cards = "".join(f"<div><dt>{what}</dt><dd>{value}</dd></div>" for what, value in facts)
    return (
        f"<header><h1>{escape(status.name)}</h1>"
        f'<p class="soft">{made}{" · " if made else ""}{report.at:%Y-%m-%d %H:%M} UTC</p>'
        f'<dl class="facts">{cards}</dl>{_advice(report)}{_choice(report)}</header>'
    )


def _advice(report: Report) -> str:
    """Whether to stop."""
    if over := report.status.over:
        return f'<p class="advice stop"><strong>Over.</strong> Nothing more is asked: {escape(over)}.</p>'
    expected = report.expected
    if expected is None:
        words = "The method states no forecast." if report.rounds else "Nothing is known before the first round closes."
        return f'<p class="advice">{words}</p>'
    if expected.stop:
        return f'<p class="advice stop"><strong>Stop:</strong> {escape(expected.stop)}.</p>'
    return (
        f'<p class="advice"><strong>Go on.</strong> Another deployment is expected to cost {number(expected.price)} '
        f"a sample, and to gain {number(expected.gain)} in each that comes after it.</p>"
    )


def _choice(report: Report) -> str:
    options = "".join(f"<option>{escape(one.name)}</option>" for one in report.clients)
    return (
        '<p class="choose"><label>Pick out a client <select id="client">'
        f'<option value="">all {len(report.clients)}</option>{options}</select></label></p>'
    )


def _section(title: str, *content: str) -> str:
    return f"<section><h2>{title}</h2>{''.join(content)}</section>"


def _deployed(report: Report) -> str:
    """What is out, and where."""
    now, rows, marks = report.at.isoformat(), [], []
    for client in report.clients:
        entry = client.newest
        if entry is None:
            continue
        late = entry.state == "open" and entry.until is not None and entry.until < now
        state = '<span class="late">overdue</span>' if late else "awaited" if entry.state == "open" else entry.state
        marks.append(client.name)
        words = [client.name, str(entry.id), state, entry.purpose, entry.since[:10], (entry.until or "-")[:10]]
        cells = [escape(word) if i != 2 else word for i, word in enumerate(words)]
        rows.append([*cells, *(number(value) for value in client.model)])
    if not rows:
        return _section("What is deployed where", "<p>Nothing was asked for yet.</p>")
    head = ["client", "deployment", "data", "purpose", "since", "due", *report.names]
    return _section("What is deployed where", table(head, rows, len(report.names), marks))


def _models(report: Report) -> str:
    """The numbers of the models, round by round."""
    shown = report.names[:MOST_NUMBERS]
    more = f" The first {MOST_NUMBERS} of {len(report.names)} are drawn." if len(report.names) > MOST_NUMBERS else ""
    trained = [float(number) for number in range(len(report.models))]
    charts = []
    for k, name in enumerate(shown):
        lines = [Line("global model", "main", trained, report.models[:, k].tolist())]
        charts.append(Chart(name, "rounds closed", name, [*lines, *_clients(report, k + 1)]))
    words = f"The global model after each round, and what each client deployed: perturbed where it explores.{more}"
    return _section("The models", f"<p>{words}</p>", _grid(charts))


def _clients(report: Report, column: int) -> list[Line]:
    """What the clients deployed of one number: a line each, or a band where they are many."""
    known = {name: rows for name, rows in report.deployed.items() if len(rows)}
    if len(known) <= MOST_LINES:
        return [Line(name, "client", rows[:, 0].tolist(), rows[:, column].tolist()) for name, rows in known.items()]
    rows = np.concatenate(list(known.values()))
    when = np.unique(rows[:, 0])
    each = [rows[rows[:, 0] == at, column] for at in when]
    return [Line("all clients", "band", when.tolist(), [v.min() for v in each], [v.max() for v in each])]


def _risk(report: Report) -> str:
    """The estimated risk, and what is left to gain."""
    if not report.rounds:
        return _section("Risk, and what is left to gain", "<p>No round has been closed yet.</p>")
    at = [float(one.number) for one in report.rounds]
    lines = [Line("mean of the clients", "main", at, _known(one.risk for one in report.rounds))]
    if any(one.low is not None for one in report.rounds):
        low, high = _known(one.low for one in report.rounds), _known(one.high for one in report.rounds)
        lines.append(Line("lowest to highest client", "band", at, low, high))
    charts = [Chart("Estimated risk", "round", "mean loss of a sample", lines)]
    forecasts = [one.forecast for one in report.rounds]
    if any(forecasts):
        excess, error, gain, price = (_known(None if f is None else f[i] for f in forecasts) for i in range(4))
        least = min((e for e in excess if e > 0), default=1.0)
        low = [max(e - s, least) for e, s in zip(excess, error, strict=True)]
        high = [e + s for e, s in zip(excess, error, strict=True)]
        expected = [Line("expected", "main", at, excess), Line("± standard error", "band", at, low, high)]
        charts.append(Chart("Left to gain", "round", "excess over the optimum", expected, log=True))
        both = [Line("gain", "main", at, gain), Line("cost", "other", at, price)]
        charts.append(Chart("One more deployment", "round", "risk of a sample", both, log=True))
        words = "As the clients' own data tell it; what is left to gain is the method's own forecast."
    else:
        words = "As the clients' own data tell it. The method states no forecast of what is left to gain."
    return _section("Risk, and what is left to gain", f"<p>{words}</p>", _grid(charts))


def _intervals(report: Report) -> str:
    """The intervals for the optimum and for what it gains; nothing where there are none."""
    known = report.intervals
    if known is None:
        return ""
    rows = [(escape(name), *map(number, ends)) for name, *ends in known.rows()]
    level = f"{100 * known.level:g} %"
    words = f"Each interval holds the truth with a probability of {level}, as far as the family suits the data."
    return _section(
        "The optimum", f"<p>{words}</p>", table([f"{level} intervals", "lower", "estimate", "upper"], rows, 3)
    )


def _learned(report: Report) -> str:
    """The reaction's slopes."""
    title, slopes = "How the data react", report.slopes
    if slopes is None:
        return _section(title, f"<p>No slopes are shown. {escape(report.no_slopes)}</p>")
    every = f"the mean of all {len(slopes.mean)} clients"
    mean = slopes.mean.mean(0)
    errors = None if slopes.error is None else TWO_SIDED * slopes.error
    spread = None if errors is None else np.sqrt((errors**2).mean(0))
    of = " (± 95 % interval of a client, root mean square)" if errors is not None else ""
    words = (
        "With 95\N{NO-BREAK SPACE}% intervals, as the method states them: they rest on its priors, and can be too "
        "narrow while deployments are few."
        if errors is not None
        else "The method states no interval of each entry."
    )
    data = {
        "clients": [one.name for one in report.clients],
        "all": every + of,
        "mean": _four(mean),
        "error": None if spread is None else _four(spread),
        "each": _four(slopes.mean),
        "errors": None if errors is None else _four(errors),
    }
    rows = [
        [
            escape(output),
            *(
                f"{_short(mean[k, j])} {'' if spread is None else f'<small>± {_short(spread[k, j])}</small>'}"
                for j in range(len(slopes.inputs))
            ),
        ]
        for k, output in enumerate(slopes.outputs)
    ]
    grid = table(["moves, by a unit of", *slopes.inputs], rows, len(slopes.inputs))
    return _section(
        title,
        f"<p>By how much each number of the data moves per unit of each number of the model. {words} "
        f'Shown: <strong id="slopes-of">{every}{of}</strong>.</p><div id="slopes">{grid}</div>',
        f'<script type="application/json" id="slopes-data">{embedded(data)}</script>',
    )


def _came_in(report: Report) -> str:
    newest = [
        [str(r.number), r.at[:10], f"{r.told} of {r.asked}", f"{r.rows:,}", number(r.risk)]
        for r in reversed(report.rounds)
    ]
    rounds = table(["round", "closed", "told", "rows", "risk"], newest, 3) if newest else "<p>No round is closed.</p>"
    clients = [
        [escape(one.name), one.last[:10] or "-", str(one.told), f"{one.rows:,}", f"{one.missing:,}"]
        for one in report.clients
    ]
    head = ["client", "last told", "deployments", "rows", "rows left out"]
    by_client = table(head, clients, 3, [one.name for one in report.clients])
    return _section("What came in", f'<div class="charts"><div>{rounds}</div><div>{by_client}</div></div>')


def _incidents(report: Report) -> str:
    status = report.status
    rows = [["now", escape(name), escape(why)] for name, why in status.absent.items()]
    rows += [[str(round_), escape(name), escape(what)] for round_, name, what in reversed(status.incidents)]
    if not rows:
        return _section("Incidents", "<p>None.</p>")
    return _section(
        "Incidents", table(["round", "client", "what"], rows, 0).replace("<table>", '<table class="words">')
    )


def _grid(charts: Iterable[Chart]) -> str:
    return f'<div class="charts">{"".join(map(figure, charts))}</div>'


def _known(values: Iterable[float | None]) -> list[float]:
    return [np.nan if value is None else float(value) for value in values]


def _four(values: np.ndarray) -> list[object]:
    """Four significant figures of every number, for JSON."""
    shape = values.shape
    flat = [float(f"{value:.4g}") if np.isfinite(value) else None for value in values.ravel()]
    nested: list[object] = np.array(flat, object).reshape(shape).tolist()
    return nested


def _short(value: float) -> str:
    return f"{value:.3g}" if np.isfinite(value) else "-"


def _asset(name: str) -> str:
    return files("profl.campaign").joinpath(name).read_text(encoding="utf-8")
