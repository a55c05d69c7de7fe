"""The command line, one module per command; ``profl --help`` lists them."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from profl import checks
from profl.cli import campaign, cases, check, compare, data, demo, flower, history, leaderboard, reproduce, run
from profl.cli.compilation import keep_compiled
from profl.cli.interrupts import announce_interrupts

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Performative federated learning: find the optimum when deploying the model changes the data.\n\n"
    "Start with `profl demo`, then `profl cases`, then `profl compare pricing`.",
)


app.command()(demo.demo)
app.command()(cases.cases)
app.command()(run.run)
app.command()(compare.compare)
app.command()(reproduce.reproduce)
app.command()(reproduce.report)
app.command()(leaderboard.leaderboard)
app.command()(check.check)
app.command()(history.history)
app.add_typer(campaign.app, name="campaign")
app.add_typer(data.app, name="data")
app.add_typer(flower.app, name="flower")

# Typer's errors are Click's, or those of the Click that newer ones carry within themselves.
CLICK_ERROR: Any = typer.BadParameter.__mro__[2]
USER_ERRORS = (checks.InputError, checks.DivergedError, checks.TooFewReports, checks.FailedError)


def _version(requested: bool) -> None:
    if requested:
        import profl

        typer.echo(f"profl {profl.__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Which profl.")] = False,
) -> None:
    pass


def main(commands: typer.Typer | None = None) -> None:
    """The entry point of ``profl``, or of other commands; expected errors are printed as one line."""
    keep_compiled()
    with announce_interrupts():
        sys.exit(exit_status(commands))


def exit_status(commands: typer.Typer | None = None) -> int:
    """The exit status of the command: 0, 1 if a claim fails, 2 for errors, 130 after Ctrl-C."""
    try:
        result = (commands or app)(standalone_mode=False)
        return result if isinstance(result, int) else 0
    except CLICK_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
        else:
            print_error(error.format_message())
    except typer.Abort:
        return 130
    except checks.FailedError as error:
        print_error(str(error), log=True)
    except USER_ERRORS as error:
        print_error(str(error))
    except OSError as error:
        print_error(f"{error.strerror or error}: {error.filename}" if error.filename else str(error))
    except ImportError as error:
        if "pip install" not in str(error):
            raise
        print_error(str(error))
    return 2


def print_error(message: str, log: bool = False) -> None:
    """Print an error on one line; if it ends with a log, with its line breaks. Brackets are not markup."""
    text = message if log else " ".join(message.split())
    line = Text.assemble(("error:", "bold red"), " ", text)
    Console(stderr=True).print(line, soft_wrap=True, highlight=False)
