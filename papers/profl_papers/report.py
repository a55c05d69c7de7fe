"""One page that holds a whole evaluation: claims with what was measured, interactive figures, settings, versions.

The page is one file. Its style, its script (``report.css``, ``report.js``) and its data are written into it, so it
needs no network and can be mailed. It is made from plain results as ``profl_papers.reproduce`` describes them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from profl.results.cells import cell, changes_note, claims_summary, verdict
from profl.storage.atomic import atomic
from profl_papers.markdown import by_paper
from profl_papers.panels import colours

Result = dict[str, Any]

INTRODUCTION = (
    "Tables and figures of <em>ProFL: Performative Robust Optimal Federated Learning</em> and of the field's other "
    "papers, run again from scratch with profl. Each claim has a threshold and the figure that was measured; where a "
    "claim does not hold, holds in direction but far from the printed figure, or was changed after results had been "
    "seen, this page says so. Lines are means over seeds, bands reach from the lowest seed to the highest. Tap a name "
    "below a figure to hide its line, point at a figure to read values."
)
LANDSCAPE = (
    "Left to right: the model that was deployed, which decides what data come in. Bottom to top: the model that is "
    "judged on those data. Colour: its risk, blue is low. Retraining looks at one column at a time, moves to that "
    "column's lowest point and deploys it; it comes to rest where that point lies on the dashed diagonal (PS). But a "
    "model is always judged on the data it brings in itself, that is on the diagonal, and the lowest point there is "
    "the optimum (PO)."
)


def write_report(results: Sequence[Result], path: str | os.PathLike[str], landscapes: Sequence[Result] = ()) -> None:
    """Write the page, whole or not at all."""
    with atomic(path) as temporary:
        temporary.write_text(page(results, landscapes), encoding="utf-8")


def page(results: Sequence[Result], landscapes: Sequence[Result] = ()) -> str:
    """The whole page as HTML."""
    panels: dict[str, Any] = {}
    sections = []
    if landscapes:
        sections.append(_landscape_section(landscapes, panels))
    for work in by_paper(results):
        sections += [_paper(work), *(_section(result, panels) for result in work)]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            '<link rel="icon" href="data:,">',
            "<title>ProFL, reproduced</title>",
            f"<style>{_asset('report.css')}</style></head><body>",
            _head(results, bool(landscapes)),
            *sections,
            f'<script type="application/json" id="data">{_embedded(panels)}</script>',
            f"<script>{_asset('report.js')}</script>",
            "</body></html>\n",
        ]
    )


def _paper(results: Sequence[Result]) -> str:
    """The head of a paper's part of the page: who wrote it, and its claims."""
    rows = [
        [
            f'<a href="#{result["item"]}">{result["item"]}</a>',
            escape(claim["claim"]),
            escape(claim.get("paper") or "-"),
            _html(claim["measured"]),
            escape(claim["expected"]),
            _verdict(claim),
        ]
        for result in results
        for claim in result["claims"]
    ]
    return "\n".join(
        [
            f'<section id="paper-{escape(results[0]["work"])}"><h2>{escape(results[0]["citation"])}</h2>',
            f"<p><strong>{_tally(results)}.</strong></p>",
            _table(["item", "claim", "paper", "measured", "expected", "holds"], rows, {"measured"}) + "</section>",
        ]
    )


def _verdict(claim: Result) -> str:
    text = verdict(claim)
    return f'<span class="{text if text in ("yes", "no") else "far"}">{escape(text)}</span>'


def _tally(results: Sequence[Result]) -> str:
    return claims_summary(claim for result in results for claim in result["claims"])


def _contents(results: Sequence[Result], landscape: bool) -> str:
    """One line per paper, with its items."""
    first = ['<li><a href="#landscape">The idea in one picture</a></li>'] if landscape else []
    lines = [
        f'<li><a href="#paper-{escape(work[0]["work"])}">{escape(work[0]["citation"])}</a>: {_tally(work)} '
        + "".join(f'<a href="#{result["item"]}">{result["item"]}</a>' for result in work)
        + "</li>"
        for work in by_paper(results)
    ]
    return f"<nav><ul>{''.join(first + lines)}</ul></nav>"


def _head(results: Sequence[Result], landscape: bool) -> str:
    seconds = sum(result["seconds"] for result in results)
    seeds = sorted({result["seeds"] for result in results})
    quick = (
        '<p class="no">Quick runs: they show the form of the result and prove nothing.</p>'
        if any(result["quick"] for result in results)
        else ""
    )
    return "\n".join(
        [
            "<header><h1>ProFL, reproduced</h1>",
            f"<p>{INTRODUCTION}</p>{quick}",
            f"<p><strong>{_tally(results)}.</strong> "
            f"{'/'.join(map(str, seeds))} seeds, {seconds:.0f} s over all items, {_versions(results)}.</p>",
            _contents(results, landscape),
            "<noscript><p>The figures need JavaScript; the tables do not.</p></noscript></header>",
        ]
    )


def _section(result: Result, panels: dict[str, Any]) -> str:
    name = result["item"]
    figure = "".join(_panel(f"{name}-{i}", spec, panels) for i, spec in enumerate(result["panels"]))
    columns = list(dict.fromkeys(key for row in result["rows"] for key in row))
    numeric = {c for c in columns if any(isinstance(row.get(c), (int, float)) for row in result["rows"])}
    rows = [[_html(row.get(column, "")) for column in columns] for row in result["rows"]]
    failed = [claim for claim in result["claims"] if not claim["holds"]]
    misses = "".join(
        f'<li><span class="no">Does not hold:</span> {escape(claim["claim"])}: {_html(claim["measured"])}, '
        f"expected {escape(claim['expected'])}.</li>"
        for claim in failed
    )
    return "\n".join(
        [
            f'<section id="{name}"><h2>{_title(name)}</h2><p>{escape(result["title"])}.</p>',
            *(f"<p>{escape(text)}</p>" for text in (result.get("finding"), changes_note(result)) if text),
            f'<div class="panels">{figure}</div>',
            f'<p class="{"no" if failed else "yes"}">{_tally([result])}</p>' + (f"<ul>{misses}</ul>" if misses else ""),
            _table(columns, rows, numeric),
            f"<details><summary>Settings</summary>{_settings(result)}</details></section>",
        ]
    )


def _landscape_section(landscapes: Sequence[Result], panels: dict[str, Any]) -> str:
    figure = "".join(_panel(f"landscape-{i}", spec, panels) for i, spec in enumerate(landscapes))
    return (
        f'<section id="landscape"><h2>The idea in one picture</h2><p>{LANDSCAPE}</p>'
        f'<div class="panels">{figure}</div></section>'
    )


def _panel(key: str, spec: Result, panels: dict[str, Any]) -> str:
    lines = [{**line, "colour": colour} for line, colour in zip(spec["lines"], colours(spec["lines"]), strict=True)]
    panels[key] = {**spec, "lines": lines}
    return f'<figure class="panel" id="{key}" data-panel="{key}"><h3>{escape(spec["title"])}</h3></figure>'


def _settings(result: Result) -> str:
    names = list(dict.fromkeys([*result["paper_row"], *result["settings"]]))
    rows = [[escape(name), _html(result["paper_row"].get(name)), _html(result["settings"].get(name))] for name in names]
    about = (
        f"{result['seeds']} seeds ({', '.join(map(str, result['seed_list']))}), {result['seconds']:.1f} s, "
        f"{_versions([result])}."
    )
    return (
        _table(["setting", "the paper's row", "here"], rows, set())
        + f'<p>{escape(result["why"])}</p><p class="soft">{about}</p>'
    )


def _versions(results: Sequence[Result]) -> str:
    versions = dict.fromkeys(f"{name} {version}" for result in results for name, version in result["versions"].items())
    return escape(", ".join(versions))


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], numeric: set[str]) -> str:
    """A table whose cells are HTML already; on a narrow screen each row becomes a card."""
    classes = [' class="number"' if column in numeric else "" for column in columns]
    head = "".join(f"<th{css}>{escape(c)}</th>" for c, css in zip(columns, classes, strict=True))
    body = "".join(
        "<tr>"
        + "".join(
            f'<td{css} data-label="{escape(c)}"><span>{text}</span></td>'
            for c, css, text in zip(columns, classes, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return f'<table class="cards"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _html(value: Any) -> str:
    """
    >>> _html(0.00012345), _html("a < b")
    ('0.0001234', 'a &lt; b')
    """
    return escape(cell(value))


def _title(name: str) -> str:
    """
    >>> _title("fig4a"), _title("table1")
    ('Figure 4a', 'Table 1')
    """
    return name.replace("fig", "Figure ").replace("table", "Table ")


def _embedded(panels: dict[str, Any]) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(panels, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _asset(name: str) -> str:
    return files("profl_papers").joinpath(name).read_text(encoding="utf-8")
