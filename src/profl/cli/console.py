"""Tables in a terminal: every table of the command line goes through ``print_table``.

Numbers are never cut. In a terminal, text is wrapped at words until a table fits its width; where its numbers alone do
not fit, it is printed in blocks, each with the first column again. Where nobody watches (a pipe, a file) every row is
one plain, whole line.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence

from rich.console import Console
from rich.text import Text

GAP = "  "
MIN_WIDTH = 16
"""Characters that a column of text is never narrower than, unless what it holds is."""


def print_table(
    console: Console,
    title: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    text: Collection[str] = (),
    *,
    short: str | None = None,
    styles: Sequence[str] = (),
) -> None:
    """Print a table.

    ``text`` names the columns that may be wrapped (the first always may); ``short`` names one that is cut at a word
    instead, so that a row stays on one line. ``styles`` has one style per row.
    """
    width = line_width(console)
    wrapped = [i for i, name in enumerate(header) if i == 0 or name in text]
    if width is not None:
        rows = _shorten_column(header, rows, short, width)
    say(console, title, "bold", width)
    for block in blocks(header, rows, wrapped, width):
        numbers = [place for place, i in enumerate(block) if i not in wrapped]
        part = [[row[i] for i in block] for row in [header, *rows]]
        sizes = column_widths(part, numbers, width)
        for k, cells in enumerate(part):
            style = "bold" if k == 0 else styles[k - 1] if styles else ""
            for line in wrap_row(cells, sizes, numbers):
                say(console, line, style)
        say(console, "")


def line_width(console: Console) -> int | None:
    """The width of a line; None (no limit) if the output is not a terminal."""
    return console.width if console.is_terminal else None


def say(console: Console, line: str, style: str = "", width: int | None = None) -> None:
    """Print a line without markup or highlighting, wrapped at ``width``."""
    for part in textwrap.wrap(line, width) if width and len(line) > width else [line]:
        console.print(Text(part, style), soft_wrap=True, highlight=False)


def blocks(
    header: Sequence[str], rows: Sequence[Sequence[str]], wrapped: Collection[int], width: int | None
) -> list[list[int]]:
    """The columns of each block, as indices: all in one block, or as many as fit beside the first column.

    >>> blocks(["a", "b", "c"], [["x", "12345", "12345"]], [0], 10)
    [[0, 1], [0, 2]]
    """
    if width is None:
        return [list(range(len(header)))]
    smallest_widths = [_min_width(_column([header, *rows], i), i not in wrapped) for i in range(len(header))]
    groups, used = [[0]], smallest_widths[0]
    for i in range(1, len(header)):
        used += len(GAP) + smallest_widths[i]
        if used > width and len(groups[-1]) > 1:
            groups.append([0])
            used = smallest_widths[0] + len(GAP) + smallest_widths[i]
        groups[-1].append(i)
    return groups


def column_widths(part: Sequence[Sequence[str]], numbers: Collection[int], width: int | None) -> list[int]:
    """The width of every column: that of its contents; if the table is too wide, the widest texts shrink."""
    columns = [_column(part, i) for i in range(len(part[0]))]
    sizes = [max(map(len, column)) for column in columns]
    if width is None:
        return sizes
    smallest_widths = [_min_width(column, i in numbers) for i, column in enumerate(columns)]
    while (excess := sum(sizes) + len(GAP) * (len(sizes) - 1) - width) > 0:
        shrinkable = [size if size > smallest else 0 for size, smallest in zip(sizes, smallest_widths, strict=True)]
        i = max(range(len(shrinkable)), key=shrinkable.__getitem__)
        if not shrinkable[i]:
            break
        sizes[i] = (
            smallest_widths[i]
            if i in numbers
            else max(smallest_widths[i], sizes[i] - excess, *_next_widest(shrinkable, i))
        )
    return sizes


def wrap_row(cells: Sequence[str], sizes: Sequence[int], numbers: Collection[int]) -> list[str]:
    """The lines of one row: texts aligned left, numbers right.

    >>> wrap_row(["much text", "1.5"], [5, 4], [1])
    ['much    1.5', 'text']
    """
    stacks = [textwrap.wrap(cell, size) or [""] for cell, size in zip(cells, sizes, strict=True)]
    lines = []
    for k in range(max(map(len, stacks))):
        row = [stack[k] if k < len(stack) else "" for stack in stacks]
        placed = [
            entry.rjust(size) if i in numbers else entry.ljust(size)
            for i, (entry, size) in enumerate(zip(row, sizes, strict=True))
        ]
        lines.append(GAP.join(placed).rstrip())
    return lines


def shorten(text: str, size: int) -> str:
    """The text cut to whole words that fit, without trailing punctuation.

    >>> shorten("Shelf prices of 11 orange juices, at 83 real stores", 40)
    'Shelf prices of 11 orange juices'
    """
    if len(text) <= size:
        return text
    words = textwrap.wrap(text, max(size, 1))[0]
    for mark in (". ", "; ", ", ", ": ", " ("):
        if (place := words.rfind(mark)) > size // 2:
            words = words[:place]
    return words.rstrip(" .,;:(")


def _shorten_column(
    header: Sequence[str], rows: Sequence[Sequence[str]], short: str | None, width: int
) -> Sequence[Sequence[str]]:
    if short is None:
        return rows
    at = list(header).index(short)
    others = sum(len(GAP) + max(map(len, _column([header, *rows], i))) for i in range(len(header)) if i != at)
    shrinkable = max(width - others, MIN_WIDTH)
    return [[shorten(cell, shrinkable) if i == at else cell for i, cell in enumerate(row)] for row in rows]


def _column(rows: Sequence[Sequence[str]], i: int) -> list[str]:
    return [row[i] for row in rows]


def _min_width(column: Sequence[str], number: bool) -> int:
    """The smallest width of a column; its heading may be wrapped, a number may not."""
    heading, *cells = column
    longest = max([0, *map(len, cells)])
    return max([longest if number else min(longest, MIN_WIDTH), *map(len, heading.split())])


def _next_widest(shrinkable: Sequence[int], i: int) -> list[int]:
    """The width just below the next widest column, so that texts of one width shrink together."""
    return [max((size for k, size in enumerate(shrinkable) if k != i), default=0) - 1]
