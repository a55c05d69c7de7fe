"""Output files: checked before a run starts, written at its end."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import typer
from rich.console import Console

from profl.checks import InputError
from profl.cli.console import say
from profl.results.plots import SUFFIXES
from profl.results.record import Run
from profl.results.tables import figures
from profl.results.trackers import JsonLines
from profl.storage.atomic import is_stream, write_json
from profl.storage.paths import check_file

PICTURES = ("--plot", "--out")


def check_files(**places: Path | None) -> list[Path]:
    """The given paths (``json=path`` for ``--json``), once it is checked that files can be written there."""
    by_option = {f"--{name}": path for name, path in places.items() if path is not None}
    for option, path in by_option.items():
        if option in PICTURES:
            check_picture(option, path)
        check_file(option, path)
    paths = [path.resolve() for path in by_option.values() if not is_stream(path)]
    if len(set(paths)) < len(paths):
        raise InputError(
            f"{' and '.join(by_option)} must name different files, got {', '.join(map(str, by_option.values()))}"
        )
    return list(by_option.values())


def check_picture(option: str, path: Path) -> None:
    """Refuse a picture format that is not supported, or any picture without matplotlib."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{option} must end in one of {', '.join(SUFFIXES)}, got {path}")
    if find_spec("matplotlib") is None:
        raise InputError(f"{option} needs matplotlib: pip install 'profl[report]'")


def write_runs(path: Path | None, command: str, runs: Sequence[Run]) -> None:
    """Write the figures of runs as JSON, if a path is given."""
    if path:
        write_json(path, {"command": command, "runs": [figures(run) for run in runs]})


def log_callbacks(path: Path | None) -> list[JsonLines]:
    """The callbacks of a run: one that writes ``--log``, if it is given."""
    if path is None:
        return []
    path.parent.mkdir(parents=True, exist_ok=True)
    return [JsonLines(path)]


def saved_files_note(paths: Sequence[Path], checkpoint: Path | None = None) -> str:
    """A sentence on the files that an interrupted command has written."""
    note = f"what was done is in {', '.join(map(str, paths))}" if paths else "no file was asked for"
    return note + ("" if checkpoint is None else f"; the same command goes on from {checkpoint}")


def exit_interrupted(line: str) -> NoReturn:
    """Print one line about an interrupted command and exit with status 130."""
    say(Console(stderr=True), line)
    raise typer.Exit(130)
