"""The command line, one module per command; ``profl --help`` lists them."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import jax
import typer
from rich.console import Console
from rich.markup import escape

import profl
from profl import checks
from profl.cli import bench, cases, check, data, demo, flower, reproduce, run
from profl.storage.cache import cache_directory

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Performative federated learning: find the optimum when deploying the model changes the data.\n\n"
    "Start with `profl demo`, then `profl cases`, then `profl compare pricing`.",
)


def show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"profl {profl.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None: ...


app.command()(demo.demo)
app.command()(cases.cases)
app.command()(run.run)
app.command()(run.compare)
app.command()(reproduce.reproduce)
app.command()(reproduce.report)
app.command()(bench.bench)
app.command()(check.check)
app.add_typer(data.app, name="data")
app.add_typer(flower.app, name="flower")


def keep_compiled() -> None:
    """Keep compiled code in the user's cache, so that a second start need not compile; JAX's own settings win."""
    if "JAX_COMPILATION_CACHE_DIR" in os.environ or "JAX_ENABLE_COMPILATION_CACHE" in os.environ:
        return
    jax.config.update("jax_compilation_cache_dir", str(cache_directory() / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def main() -> None:
    """The entry point: errors that a person can act on are one line, not a traceback."""
    keep_compiled()
    try:
        app()
    except (checks.InputError, checks.DivergedError, checks.TooFewReports, checks.FailedError) as error:
        refuse(error)
    except ImportError as error:  # an extra that is not installed says how to get it
        if "pip install" not in str(error):
            raise
        refuse(error)


def refuse(error: Exception) -> None:
    Console(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False)
    sys.exit(2)
