"""``profl run``: one method on one case."""

from __future__ import annotations

import typer
from rich.console import Console

from profl.cli import outputs
from profl.cli.builders import make_config, make_methods, make_problem
from profl.cli.console import line_width, say
from profl.cli.options import AlgorithmName, RunOptions, SavePath, with_run_options
from profl.interrupts import Interrupted
from profl.run.compiled.simulate import Execution, simulate_config
from profl.storage.paths import check_folder


@with_run_options
def run(options: RunOptions, algorithm: AlgorithmName = "pofl", save: SavePath = None) -> None:
    """One algorithm on one case, measured against the exact optimum.

    Example: profl run housing --algorithm pofl --seeds 0-9 --plot housing.png

    Example: profl run pricing -a profl --junk 0.2 --hostile 0.2 --aggregate trimmed_mean
    """
    files = outputs.check_files(json=options.json_path, plot=options.plot, save=save, log=options.log)
    check_folder("--checkpoint", options.checkpoint)
    [method, *more], _ = make_methods(algorithm, options)
    if more:
        raise typer.BadParameter("one algorithm, please; profl compare takes several", param_hint="--algorithm")
    problem = make_problem(options)
    config = make_config(options, problem.count)
    pressed = None
    try:
        execution = Execution(
            progress=not options.quiet,
            checkpoint=options.checkpoint,
            resume=options.resume,
            callbacks=outputs.log_callbacks(options.log),
        )
        result = simulate_config(problem, method, config, execution)
    except Interrupted as interrupted:
        result, pressed = interrupted.run, interrupted
    if save:
        result.save(save)
    outputs.write_runs(options.json_path, "run", [result])
    if options.plot:
        result.plot(options.plot)
    if not options.quiet:
        console = Console()
        for line in result.summary().splitlines():
            say(console, line, width=line_width(console))
    if pressed:
        outputs.exit_interrupted(f"{pressed}; {outputs.saved_files_note(files, options.checkpoint)}")
