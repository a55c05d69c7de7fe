"""``profl data list | get | path``: the real data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from profl import checks
from profl.cli import outputs
from profl.cli.console import print_table
from profl.data.fetch import WAIT, get
from profl.data.registry import DATASETS, dataset, find, locate
from profl.results.cells import count
from profl.storage.atomic import write_json

app = typer.Typer(no_args_is_help=True, help="Real data sets: what there is, how to get it, where it lies.")

Name = Annotated[str, typer.Argument(help=f"Data set: {', '.join(DATASETS)}.")]
SourcePath = Annotated[Path | None, typer.Option("--from", help="A file or directory that holds the data.")]


@app.command("list")
def list_(
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the list to this file as JSON.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing.")] = False,
) -> None:
    """The data sets profl knows and whether they are on this machine."""
    outputs.check_files(json=json_path)
    rows: list[dict[str, Any]] = [
        {
            "name": data_set.name,
            "what": data_set.title,
            "rows": data_set.rows,
            "licence": data_set.licence,
            "here": availability(data_set.name),
        }
        for data_set in DATASETS.values()
    ]
    if json_path:
        write_json(json_path, {"data": rows})
    if quiet:
        return
    cells = [[count(value) if isinstance(value, int) else value for value in row.values()] for row in rows]
    print_table(Console(), "Data sets", list(rows[0]), cells, ["what", "licence", "here"])
    for row in rows:
        if row["here"] != "yes":
            typer.echo(f"profl data get {row['name']}" + (" --force" if row["here"] == "damaged" else ""))


@app.command("get")
def get_(
    names: Annotated[list[str], typer.Argument(help=f"Data sets: {', '.join(DATASETS)}, or all.")],
    source: SourcePath = None,
    force: Annotated[bool, typer.Option("--force", help="Fetch it again, whatever is here.")] = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for each source.")] = WAIT,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the path only.")] = False,
) -> None:
    """Fetch data sets into the cache, check them, and print where they are.

    Example: profl data get adult credit
    """
    console = Console(stderr=True)
    for name in DATASETS if names == ["all"] else [dataset(name).name for name in names]:

        def say(line: str, name: str = name) -> None:
            if not quiet:
                console.print(f"{name}: {line}", markup=False, highlight=False, soft_wrap=True)

        typer.echo(get(name, source, force=force, wait=wait, say=say))


@app.command("path")
def path_(name: Name, source: SourcePath = None) -> None:
    """Print the file that holds a data set, checked; exit status 2 where it is not on this machine."""
    typer.echo(find(name, source))


def availability(name: str) -> str:
    """Whether the data set is on this machine: yes, no, or damaged."""
    if locate(name) is None:
        return "no"
    try:
        find(name)
    except checks.InputError:
        return "damaged"
    return "yes"
