"""Options that all commands of ``profl campaign`` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

Database: TypeAlias = Annotated[
    str, typer.Option("--db", help="The database: a file such as prices.db, or a URL such as postgresql://host/prices.")
]
Name: TypeAlias = Annotated[
    str | None, typer.Option("--name", help="Which campaign of the database.", show_default="the only one")
]
ProblemSpec: TypeAlias = Annotated[
    str | None, typer.Option("--problem", help="FILE.py:NAME of the problem, where its file, of the same name, is now.")
]
Json: TypeAlias = Annotated[
    Path | None, typer.Option("--json", help="Also write it to this file as JSON; /dev/stdout with --quiet prints it.")
]
