"""Options that several commands take. ``RunOptions`` has those of ``run`` and ``compare``; None means not given."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_type_hints

import typer

from profl.cases import CASES
from profl.methods import ALGORITHMS
from profl.parts.filters import FILTERS
from profl.parts.jacobian.estimators import ESTIMATORS
from profl.problem.sources import SOURCES
from profl.server.attacks import ATTACKS
from profl.server.rules import RULES

Option, Argument = typer.Option, typer.Argument
TROUBLE = "Junk, hostile clients, and what helps"
JsonPath: TypeAlias = Annotated[Path | None, Option("--json", help="Also write the figures to this file as JSON.")]
PlotPath: TypeAlias = Annotated[
    Path | None, Option("--plot", help="Also plot risk against deployments (.png, .svg, .pdf).")
]
SavePath: TypeAlias = Annotated[
    Path | None, Option("--save", help="Also save the whole run; read it back with profl.load.")
]
Quiet: TypeAlias = Annotated[bool, Option("--quiet", "-q", help="No progress bars, no tables.")]
Wide: TypeAlias = Annotated[bool, Option("--wide", help="All columns.")]
Rounds: TypeAlias = Annotated[int, Option(help="Rounds of the federation.")]
Seeds: TypeAlias = Annotated[str, Option("--seeds", "--seed", help="One seed (3), a list (0,1,5) or a range (0-9).")]


@dataclass(frozen=True)
class RunOptions:
    """The case, its contamination and the length of a run: the same options in ``run`` and ``compare``."""

    case: Annotated[
        str,
        Argument(
            help=f"Case study: {', '.join(CASES)}; or a problem of your own, as FILE.py:NAME or MODULE:NAME.",
            autocompletion=lambda: list(CASES),
        ),
    ]
    rounds: Rounds = 200
    local_steps: Annotated[int, Option("--local-steps", "-R", help="Local steps per round; each deploys once.")] = 5
    samples: Annotated[int, Option("--samples", "-n", help="Samples per client and deployment.")] = 500
    seeds: Seeds = "0-9"
    clients: Annotated[int | None, Option(help="Number of clients.", show_default="10")] = None
    heterogeneity: Annotated[
        float | None,
        Option(help="Half-width of the clients' sensitivities (adult, credit: relative).", show_default="the case's"),
    ] = None
    participation: Annotated[float, Option(help="Share of clients asked per round, in (0, 1].")] = 1.0
    learning_rate: Annotated[
        str | None,
        Option("--learning-rate", "--eta", help="Learning rate: a number, or auto.", show_default="the method's"),
    ] = None
    window: Annotated[
        int | None,
        Option("--window", "-H", help="Deployments that least_squares and paper use.", show_default="the method's"),
    ] = None
    jacobian: Annotated[
        str | None,
        Option(help=f"How df/dtheta is estimated: {', '.join(ESTIMATORS)}, exact.", show_default="the method's"),
    ] = None
    stop: Annotated[
        float | None,
        Option(
            help="End once the method expects an excess of at most this; 0: once another deployment gains less than it "
            "costs."
        ),
    ] = None
    junk: Annotated[float | None, Option(help="Share of the samples that is junk.", rich_help_panel=TROUBLE)] = None
    source: Annotated[
        str | None,
        Option(help=f"What the junk is: {', '.join(SOURCES)}.", show_default="blob", rich_help_panel=TROUBLE),
    ] = None
    distance: Annotated[
        float | None,
        Option(
            help="How far away it lies, in standard deviations of the data.",
            show_default="10",
            rich_help_panel=TROUBLE,
        ),
    ] = None
    hostile: Annotated[float | None, Option(help="Share of the clients that attack.", rich_help_panel=TROUBLE)] = None
    attack: Annotated[
        str | None,
        Option(help=f"What they do: {', '.join(ATTACKS)}.", show_default="sign_flip", rich_help_panel=TROUBLE),
    ] = None
    filter: Annotated[
        str | None,
        Option(
            help=f"Which samples to trust: {', '.join(FILTERS)}.", show_default="the method's", rich_help_panel=TROUBLE
        ),
    ] = None
    aggregate: Annotated[
        str | None,
        Option(
            help=f"How models are combined: {', '.join(RULES)}; nnm+ before a name mixes neighbours first, "
            "and history:0.3 states the share of hostile clients to withstand.",
            show_default="the method's",
            rich_help_panel=TROUBLE,
        ),
    ] = None
    share: Annotated[
        str | None,
        Option(
            help="What clients share of how data react: none, auto, shrink, or a number of groups.",
            show_default="the method's",
            rich_help_panel=TROUBLE,
        ),
    ] = None
    adaptive: Annotated[
        float | None,
        Option(
            help="A sample size that follows the noise: the mean squared error that a gradient may have.",
            rich_help_panel=TROUBLE,
        ),
    ] = None
    checkpoint: Annotated[
        Path | None, Option(help="A folder: what is done is kept there after every round, and gone on from.")
    ] = None
    resume: Annotated[bool, Option(help="Go on from what --checkpoint holds.")] = True
    log: Annotated[Path | None, Option(help="Add a line of JSON to this file for every round.")] = None
    json_path: JsonPath = None
    plot: PlotPath = None
    quiet: Quiet = False


AlgorithmName = Annotated[
    str,
    Option("--algorithm", "-a", help=f"One of {', '.join(ALGORITHMS)}.", autocompletion=lambda: list(ALGORITHMS)),
]
Algorithms = Annotated[str, Option("--algorithms", "-a", help=f"Names, with commas: {', '.join(ALGORITHMS)}.")]


def with_run_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command that takes the fields of ``RunOptions`` as options, from one that takes ``options: RunOptions``."""
    hints = get_type_hints(RunOptions, include_extras=True)
    own_parameters = [
        p for name, p in inspect.signature(command, eval_str=True).parameters.items() if name != "options"
    ]
    names = [field.name for field in fields(RunOptions)]

    def call(**named: Any) -> None:
        command(RunOptions(**{name: named.pop(name) for name in names}), **named)

    first, *others = (
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(RunOptions)
    )
    parameters = [first, *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own_parameters), *others]
    call.__name__, call.__doc__ = command.__name__, command.__doc__
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call
