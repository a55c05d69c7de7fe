"""The leaderboard as one HTML file: tables that sort, the problems that were drawn, how all was made.

It is made from a board as ``profl_papers.leaderboard.board`` describes it, and needs no network: style and script are
written into it. A header's button sorts its table (``leaderboard.js``); without a script the tables stand as they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import Any, NamedTuple

from profl.results.cells import cell, number
from profl.storage.atomic import atomic
from profl_papers.leaderboard.play import CONDITIONS, REACHED
from profl_papers.leaderboard.standings import median

Board = dict[str, Any]
Figures = dict[str, Any]

HERE = "profl_papers.leaderboard"
MEANING = {
    "clean": "data as people send them",
    "junk": "20 % of the samples lie far away",
    "hostile": "20 % of the clients attack",
}


class Measure(NamedTuple):
    """One table: a figure of every method under every condition."""

    key: str
    title: str
    text: str
    show: Callable[[Figures], list[str]]  # the lines of a cell, the first one large
    value: Callable[[Figures], float | None]  # what it is sorted by


def write_page(board: Board, path: str | os.PathLike[str]) -> None:
    """Write the page, whole or not at all."""
    with atomic(path) as temporary:
        temporary.write_text(page(board), encoding="utf-8")


def page(board: Board) -> str:
    """The whole page."""
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            '<link rel="icon" href="data:,">',
            "<title>profl leaderboard</title>",
            f"<style>{_asset('profl_papers', 'report.css')}{_asset(HERE, 'leaderboard.css')}</style></head><body>",
            _head(board),
            *(_measure(measure, board) for measure in MEASURES),
            _each_problem(board),
            _problems(board),
            _methods(board),
            f"<script>{_asset(HERE, 'leaderboard.js')}</script>",
            "</body></html>\n",
        ]
    )


def _head(board: Board) -> str:
    settings, seed, notes = board["settings"], board["seed"], []
    seeds = f"{settings['seeds']} seeds each" if settings["seeds"] > 1 else "one seed each"
    if board["quick"]:
        notes.append("A quick run: it shows the form of the result and judges nothing.")
    if not board["complete"]:
        notes.append(f"Not complete: {len(board['problems'])} of {settings['problems']} problems so far.")
    if board["drawn"] == "given":
        notes.append("The seed was given and not drawn: these problems may have been known before.")
    how = (
        f"{settings['problems']} problems that were drawn when the command ran, {seeds}. Every "
        f"method has {settings['rounds']} rounds and, but for those whose column says less, five deployments of a "
        "client in each, with the same samples. The gap is L(PS) - L(PO): what retraining leaves above the optimum. "
        "A method that leaves 0 has found the optimum, one that leaves 1 is no better than retraining at rest."
    )
    versions = escape(", ".join(f"{name} {version}" for name, version in board["versions"].items()))
    return "\n".join(
        [
            "<header><h1>Leaderboard</h1>",
            *(f'<p class="no">{escape(note)}</p>' for note in notes),
            f"<p>{how}</p>",
            f"<p><strong>Seed {seed}.</strong> Again the same: <code>profl leaderboard --seed {seed}</code></p>",
            f'<p class="soft">{versions}</p></header>',
        ]
    )


def _measure(measure: Measure, board: Board) -> str:
    columns = ["method", "deployments", *CONDITIONS]
    rows = []
    order = sorted(board["standings"], key=lambda row: _least(measure.value(row["clean"])))
    for row in order:
        cells = [_cell(measure, row[condition]) for condition in CONDITIONS]
        rows.append([_name(row["method"], board), _plain(cell(row["deployments"]), row["deployments"]), *cells])
    table = _table(measure.title, columns, rows, "sortable measure", sorted_by=2)
    return _section(measure.key, measure.title, measure.text, table)


def _cell(measure: Measure, figures: Figures) -> str:
    """The lines of a cell; where the method never ran, why."""
    if "left" not in figures:
        reasons = escape("; ".join(figures["reasons"]))
        return f'<td data-value=""><span class="soft">none<small>{reasons}</small></span></td>'
    first, *others = measure.show(figures)
    if figures["refused"]:
        others.append(f"refused {figures['refused']}: {'; '.join(figures['reasons'])}")
    small = "".join(map(_small, others))
    return f'<td data-value="{_sortable(measure.value(figures))}"><b>{escape(first)}</b>{small}</td>'


def _small(text: str) -> str:
    return f"<small>{escape(text)}</small>" if text else ""


def _show_left(figures: Figures) -> list[str]:
    lines = [number(figures["left"]) if figures["left"] is not None else "diverged", _between(figures["quartiles"])]
    diverged = f", {figures['diverged']} diverged" if figures["diverged"] else ""
    lines.append(f"worst {_or(figures['worst'], 'diverged')}{diverged}")
    if "rank" in figures:
        lines.append(f"rank {figures['rank']} ({figures['rank_low']} to {figures['rank_high']})")
    return lines


def _show_regret(figures: Figures) -> list[str]:
    return [_or(figures["regret"], "diverged"), _between(figures["regret_quartiles"])]


def _show_reached(figures: Figures) -> list[str]:
    return [_or(figures["reached"], "never"), f"{figures['reached_share']:.0%} of the runs"]


def _show_seconds(figures: Figures) -> list[str]:
    return [f"{figures['cpu']:.2g}", f"longest {figures['cpu_first']:.2g}"]


MEASURES = (
    Measure(
        "left",
        "Share of the gap that is left",
        "Of the model at the end: the median over problems and seeds, the quartiles below it, and the worst run. "
        "Ranks are by the median over problems of the median over seeds; in brackets where 90 % of them lie when "
        "problems are drawn again with replacement (bootstrap over problems). Methods whose brackets overlap are not "
        "told apart by these problems.",
        _show_left,
        lambda figures: figures.get("left"),
    ),
    Measure(
        "regret",
        "Deployed regret",
        "The mean risk of all models that were deployed, above the optimum, in gaps: exploring and wandering are part "
        "of it. Median and quartiles over problems and seeds. It is a mean over a method's own deployments, of which "
        "prm has a fifth.",
        _show_regret,
        lambda figures: figures.get("regret"),
    ),
    Measure(
        "reached",
        f"Deployments until {REACHED:.0%} of the gap is left",
        "Deployments of a client until the model of a round first leaves no more: the median over problems and seeds, "
        "where runs that never do count as infinite, and the share of the runs that do.",
        _show_reached,
        lambda figures: figures.get("reached"),
    ),
    Measure(
        "seconds",
        "Seconds",
        "Processor time for all seeds of a problem together: the median over problems, of which few compile a program, "
        "and the longest; of clean data, which come first, that is a run that did.",
        _show_seconds,
        lambda figures: figures.get("cpu"),
    ),
)


def _each_problem(board: Board) -> str:
    """The share left on every problem: one table a condition, closed at first."""
    numbers = [problem["facts"]["number"] for problem in board["problems"]]
    parts = []
    for condition in CONDITIONS:
        rows = []
        for row in board["standings"]:
            cells = [_of_problem(problem["cells"][row["method"]][condition]) for problem in board["problems"]]
            rows.append([_name(row["method"], board), *cells])
        table = _table(f"Share left on every problem, {condition}", ["method", *map(str, numbers)], rows)
        parts.append(f"<details><summary>{condition}</summary>{table}</details>")
    text = "The median over seeds of the share of the gap that is left; numbers are those of the problems below."
    return _section("each", "Problem by problem", text, "".join(parts))


def _of_problem(cell_: Figures) -> str:
    if "refused" in cell_:
        return f'<td data-value="" title="{escape(cell_["refused"])}">none</td>'
    values = sorted(float("inf") if v is None else v for v in cell_["left"])
    middle: float | None = median_of(values)
    return _plain(_or(middle, "diverged"), middle)


def median_of(values: Sequence[float]) -> float | None:
    """The median; None where it is not finite.

    >>> median_of([1.0, 2.0, 4.0]), median_of([1.0, float("inf")])
    (2.0, None)
    """
    import numpy as np

    found = median(np.asarray(values, float))
    return found if np.isfinite(found) else None


FACTS = {
    "number": "no.",
    "kind": "kind",
    "reaction": "reaction",
    "what": "what was drawn",
    "parameters": "parameters",
    "clients": "clients",
    "samples": "samples",
    "family": "family",
    "heaviest": "largest weight",
    "gap": "gap",
    "start": "start, in gaps",
    "junk_distance": "junk at, in sd",
    "attack": "attack",
    "hostile": "hostile clients",
}


def _problems(board: Board) -> str:
    rows: list[list[str]] = []
    refused: dict[str, int] = {}
    for problem in board["problems"]:
        facts = problem["facts"]
        rows.append([_plain(cell(facts[name]), facts[name]) for name in FACTS])
        for why, count in facts["refused_draws"].items():
            refused[why] = refused.get(why, 0) + count
    again = "; ".join(f"{why}: {count}" for why, count in refused.items()) or "none"
    text = (
        "Drawn from the seed; all problems of a kind share clients, samples, parameters and the attack, so that they "
        "share compiled programs. Each has an exact risk, optimum and stable point, on which two solvers agree. A draw "
        "whose gap is less than a tenth of what the start leaves, or whose start leaves less than a tenth of the gap, "
        f"is drawn again. Draws that were refused: {again}."
    )
    return _section("problems", "The problems", text, _table("The problems", list(FACTS.values()), rows))


def _methods(board: Board) -> str:
    rows = []
    for each in board["methods"]:
        notes = ["own"] if each["own"] else []
        notes += ["came after the problems were known"] if each["late"] else []
        rows.append([_plain(text, text) for text in (each["name"], each["text"], "; ".join(notes) or "-")])
    text = (
        'Methods are at their documented defaults. Those that can find their learning rate (learning_rate="auto") do; '
        "rrm and dfo, which cannot, take the rate with which their first step is as long as the first one of "
        '"auto": 0.07 of the natural scales of the parameters, on one batch of every client at the start. '
        "two_stage and prm have none."
    )
    return _section("methods", "The methods", text, _table("The methods", ["method", "made by", "notes"], rows))


# -- pieces of HTML


def _section(key: str, title: str, text: str, body: str) -> str:
    return f'<section id="{key}"><h2>{escape(title)}</h2><p>{escape(text)}</p>{body}</section>'


def _table(
    label: str,
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    css: str = "sortable",
    sorted_by: int | None = None,
) -> str:
    """A table in a box of its own that scrolls; cells are whole ``<td>`` or ``<th>``."""
    head = "".join(
        f'<th scope="col" aria-sort="{"ascending" if i == sorted_by else "none"}"><button type="button">{escape(title)}'
        f'<span aria-hidden="true"></span></button>{_small(MEANING.get(title, ""))}</th>'
        for i, title in enumerate(titles)
    )
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}"><table class="{css}">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _name(name: str, board: Board) -> str:
    late = any(each["name"] == name and each["late"] for each in board["methods"])
    note = "<small>came later</small>" if late else ""
    return f'<th scope="row" data-value="{escape(name)}">{escape(name)}{note}</th>'


def _plain(text: str, value: Any) -> str:
    return f'<td data-value="{_sortable(value)}">{escape(text)}</td>'


def _sortable(value: Any) -> str:
    """What a cell is sorted by: nothing for a figure that is not finite, which comes last."""
    if value is None or isinstance(value, (int, float)):
        return "" if value is None else repr(value)
    return escape(cell(value))


def _between(quartiles: Sequence[float | None]) -> str:
    low, high = (_or(value, "diverged") for value in quartiles)
    return f"{low} to {high}"


def _or(value: float | None, other: str) -> str:
    return other if value is None else number(value)


def _least(value: float | None) -> float:
    return float("inf") if value is None else value


def _asset(package: str, name: str) -> str:
    return files(package).joinpath(name).read_text(encoding="utf-8")
