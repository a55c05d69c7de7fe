"""``profl run``: one method on one case."""

from __future__ import annotations

import typer
from rich.console import Console

from profl.cli import outputs
from profl.cli.builders import make_config, make_methods, make_problem
from profl.cli.console import fitting, say
from profl.cli.options import AlgorithmName, Asked, SavePath, asks
from profl.interrupts import Interrupted
from profl.run.compiled.simulate import Execution, simulate_config
from profl.storage.paths import check_folder


@asks
def run(asked: Asked, algorithm: AlgorithmName = "pofl", save: SavePath = None) -> None:
    """One algorithm on one case, measured against the exact optimum.

    Example: profl run housing --algorithm pofl --seeds 0-9 --plot housing.png

    Example: profl run pricing -a profl --junk 0.2 --hostile 0.2 --aggregate trimmed_mean
    """
    files = outputs.check_files(json=asked.json_path, plot=asked.plot, save=save, log=asked.log)
    check_folder("--checkpoint", asked.checkpoint)
    [method, *more], _ = make_methods(algorithm, asked)
    if more:
        raise typer.BadParameter("one algorithm, please; profl compare takes several", param_hint="--algorithm")
    problem = make_problem(asked)
    config = make_config(asked, problem.count)
    pressed = None
    try:
        execution = Execution(
            progress=not asked.quiet,
            checkpoint=asked.checkpoint,
            resume=asked.resume,
            callbacks=outputs.logs(asked.log),
        )
        result = simulate_config(problem, method, config, execution)
    except Interrupted as interrupted:
        result, pressed = interrupted.run, interrupted
    if save:
        result.save(save)
    outputs.write_runs(asked.json_path, "run", [result])
    if asked.plot:
        result.plot(asked.plot)
    if not asked.quiet:
        console = Console()
        for line in result.summary().splitlines():
            say(console, line, width=fitting(console))
    if pressed:
        outputs.end(f"{pressed}; {outputs.kept(files, asked.checkpoint)}")
