"""``profl compare``: several methods on one case."""

from __future__ import annotations

from rich.console import Console

from profl.checks import InputError
from profl.cli import outputs
from profl.cli.builders import make_config, make_methods, make_problem
from profl.cli.console import say
from profl.cli.options import Algorithms, Asked, Wide, asks
from profl.cli.result_tables import print_comparison
from profl.results.plots import plot_runs
from profl.results.record import Run
from profl.run.compiled.simulate import Execution, simulate_config
from profl.storage.paths import check_folder


@asks
def compare(asked: Asked, algorithms: Algorithms = "pfl,pg,pofl", wide: Wide = False) -> None:
    """Several algorithms on one case, side by side, with the same seeds and budget.

    Example: profl compare strategic --algorithms pfl,pofl --plot strategic.png

    Example: profl compare pricing -a pofl,profl --junk 0.2 --source blob --distance 30
    """
    files = outputs.check_files(json=asked.json_path, plot=asked.plot, log=asked.log)
    check_folder("--checkpoint", asked.checkpoint)
    methods, without = make_methods(algorithms, asked)
    names = [method.name for method in methods]
    if asked.checkpoint is not None and len(set(names)) < len(names):
        raise InputError(f"with --checkpoint every method may be named once, got {algorithms!r}")
    problem = make_problem(asked)
    config = make_config(asked, problem.count)
    if not asked.quiet:
        for line in without:
            say(Console(stderr=True), line)
    runs: list[Run] = []
    pressed = None
    try:
        for method in methods:
            execution = Execution(
                progress=not asked.quiet,
                checkpoint=asked.checkpoint and asked.checkpoint / method.name,
                resume=asked.resume,
                callbacks=outputs.logs(asked.log),
            )
            runs.append(simulate_config(problem, method, config, execution))
    except KeyboardInterrupt as interrupted:
        pressed = interrupted
    if runs:
        if asked.plot:
            plot_runs({problem.name: runs}, asked.plot)
        outputs.write_runs(asked.json_path, "compare", runs)
        if not asked.quiet:
            print_comparison(Console(), problem.name, runs, wide)
    if pressed:
        done = f"finished: {', '.join(names[: len(runs)])}" if runs else "no method was finished"
        outputs.end(
            f"interrupted in {names[len(runs)]}; {done}; {outputs.kept(files if runs else [], asked.checkpoint)}"
        )
