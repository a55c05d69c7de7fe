"""Tables and text as a notebook shows them."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def table(rows: Sequence[Sequence[str]], title: str = "") -> str:
    """An HTML table of rows of text; the first row is the header, the first column is aligned to the left.

    >>> table([["", "mean"], ["risk", "1 < 2"]])[-55:]
    '<td style="text-align:right">1 &lt; 2</td></tr></table>'
    """
    head = f"<caption style='text-align:left'>{escape(title)}</caption>" if title else ""
    return f"<table>{head}{_row(rows[0], 'th')}{''.join(_row(row, 'td') for row in rows[1:])}</table>"


def text(content: str) -> str:
    """Preformatted text."""
    return f"<pre>{escape(content)}</pre>"


def _row(cells: Sequence[str], kind: str) -> str:
    sides = ["left", *["right"] * (len(cells) - 1)]
    columns = [
        f'<{kind} style="text-align:{side}">{escape(cell)}</{kind}>' for cell, side in zip(cells, sides, strict=True)
    ]
    return f"<tr>{''.join(columns)}</tr>"
