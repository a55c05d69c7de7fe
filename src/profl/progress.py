"""A progress bar where there is a terminal to show it on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(title: str, total: int, show: bool, compiles: bool = False) -> Iterator[Callable[[int], None]]:
    """Yields ``advance(steps)``; does nothing when ``show`` is false or nobody watches.

    ``compiles`` says that code is compiled before the first step, which may take longer than all of them.
    """
    if not (show and sys.stderr.isatty()):
        yield lambda steps: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"compiling {title} ..." if compiles else title, total=total)
        yield lambda steps: bar.update(task, advance=steps, description=title if steps else None)
