"""The tutorial, a notebook, as a page with what its cells really print and draw.

    tutorial.ipynb ->  cells  ->  ran one after the other in one namespace, as Jupyter would  ->  Markdown

It needs nothing but Python to run: no kernel, no Jupyter. What the last line of a cell is worth is shown, as in a
notebook; pictures that are open after a cell go into ``docs/figures``.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple


class Cell(NamedTuple):
    kind: str  # "markdown" or "code"
    source: str


class Output(NamedTuple):
    """What one cell left: text, and the pictures it drew."""

    text: str
    pictures: tuple[bytes, ...]


def cells(path: Path) -> list[Cell]:
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [Cell(cell["cell_type"], "".join(cell["source"])) for cell in found]


def run(told: list[Cell], space: dict[str, Any] | None = None) -> Iterator[Output]:
    """What each cell leaves, in order; they run in a folder that is gone afterwards."""
    import matplotlib

    matplotlib.use("Agg")
    space = {"__name__": "__main__"} if space is None else space
    back = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for number, cell in enumerate(told):
                yield Output("", ()) if cell.kind == "markdown" else execute(cell.source, f"cell {number}", space)
        finally:
            os.chdir(back)


def execute(source: str, name: str, space: dict[str, Any]) -> Output:
    """
    >>> execute("x = 2\\nprint(x)\\nx + 1", "example", {}).text
    '2\\n3\\n'
    """
    tree = ast.parse(source, name)
    shown = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(tree, name, "exec"), space)
        if isinstance(shown, ast.Expr):
            value = eval(compile(ast.Expression(shown.value), name, "eval"), space)
            if value is not None:
                print(repr(value))
    return Output(said.getvalue(), tuple(drawn()))


def drawn() -> Iterator[bytes]:
    """Every picture that is open, which closes it."""
    from matplotlib import pyplot

    for number in pyplot.get_fignums():
        kept = io.BytesIO()
        pyplot.figure(number).savefig(kept, format="png", dpi=120, bbox_inches="tight")
        yield kept.getvalue()
    pyplot.close("all")


def page(path: Path, figures: Path) -> str:
    """The notebook as Markdown, with its pictures written to ``figures``."""
    told = cells(path)
    figures.mkdir(parents=True, exist_ok=True)
    parts = []
    for number, (cell, left) in enumerate(zip(told, run(told), strict=True)):
        if cell.kind == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        if left.text:
            parts.append(f"```\n{left.text.rstrip()}\n```")
        for i, picture in enumerate(left.pictures):
            name = f"{path.stem}-{number}-{i}.png"
            (figures / name).write_bytes(picture)
            parts.append(f"![What cell {number} draws]({figures.name}/{name})")
    return "\n\n".join(parts) + "\n"
