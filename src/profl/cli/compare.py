"""``profl compare``: several methods on one case."""

from __future__ import annotations

from rich.console import Console

from profl.checks import InputError
from profl.cli import outputs
from profl.cli.builders import make_config, make_methods, make_problem
from profl.cli.console import say
from profl.cli.options import Algorithms, RunOptions, Wide, with_run_options
from profl.cli.result_tables import print_comparison
from profl.results.plots import plot_runs
from profl.results.record import Run
from profl.run.compiled.simulate import Execution, simulate_config
from profl.storage.paths import check_folder


@with_run_options
def compare(options: RunOptions, algorithms: Algorithms = "pfl,pg,pofl", wide: Wide = False) -> None:
    """Several algorithms on one case, side by side, with the same seeds and budget.

    Example: profl compare strategic --algorithms pfl,pofl --plot strategic.png

    Example: profl compare pricing -a pofl,profl --junk 0.2 --source blob --distance 30
    """
    files = outputs.check_files(json=options.json_path, plot=options.plot, log=options.log)
    check_folder("--checkpoint", options.checkpoint)
    methods, without = make_methods(algorithms, options)
    names = [method.name for method in methods]
    if options.checkpoint is not None and len(set(names)) < len(names):
        raise InputError(f"with --checkpoint every method may be named once, got {algorithms!r}")
    problem = make_problem(options)
    config = make_config(options, problem.count)
    if not options.quiet:
        for line in without:
            say(Console(stderr=True), line)
    runs: list[Run] = []
    pressed = None
    try:
        for method in methods:
            execution = Execution(
                progress=not options.quiet,
                checkpoint=options.checkpoint and options.checkpoint / method.name,
                resume=options.resume,
                callbacks=outputs.log_callbacks(options.log),
            )
            runs.append(simulate_config(problem, method, config, execution))
    except KeyboardInterrupt as interrupted:
        pressed = interrupted
    if runs:
        if options.plot:
            plot_runs({problem.name: runs}, options.plot)
        outputs.write_runs(options.json_path, "compare", runs)
        if not options.quiet:
            print_comparison(Console(), problem.name, runs, wide)
    if pressed:
        finished = f"finished: {', '.join(names[: len(runs)])}" if runs else "no method was finished"
        note = outputs.saved_files_note(files if runs else [], options.checkpoint)
        outputs.exit_interrupted(f"interrupted in {names[len(runs)]}; {finished}; {note}")
