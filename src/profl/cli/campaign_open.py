"""Opening a campaign from a command line: the database's URL, and problem and method from what is kept in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profl.checks import InputError
from profl.cli.builders import make_methods
from profl.cli.options import RunOptions
from profl.methods.method import Method
from profl.methods.stopping import StopWhenSettled
from profl.objects import import_object
from profl.problem.live import LiveProblem
from profl.problem.problem import Problem

if TYPE_CHECKING:
    from profl.campaign import Campaign

PREFIX = "sqlite:///"


def url_of(db: str) -> str:
    """The URL of a database: a path is SQLite's.

    >>> url_of("prices.db"), url_of("postgresql://host/prices")
    ('sqlite:///prices.db', 'postgresql://host/prices')
    """
    if not db.strip():
        raise InputError("--db must be a file such as prices.db, or a URL such as postgresql://user@host/name, got ''")
    return db if "://" in db else PREFIX + db


def shown(db: str) -> str:
    """A database as it may be printed: without its password.

    >>> shown("postgresql://me:secret@host/prices"), shown("prices.db")
    ('postgresql://me:***@host/prices', 'prices.db')
    """
    return re.sub(r"(://[^:/@]*):.*@", r"\1:***@", db)


def folder_of(url: str) -> Path | None:
    """The folder of a SQLite database, to which files are kept relative; None for other databases."""
    return Path(url.removeprefix(PREFIX)).absolute().parent if url.startswith(PREFIX) else None


def name_of(url: str, name: str | None) -> str:
    """The campaign that is meant: the one that is named, or the only one."""
    if name is not None:
        return name
    from profl.campaign.log import campaign_names

    names = campaign_names(url)
    if len(names) > 1:
        raise InputError(f"there are several campaigns: {', '.join(names)}; say which one with --name")
    return names[0] if names else "campaign"


def open_again(db: str, name: str | None, problem: str | None = None) -> Campaign:
    """The campaign in a database; ``problem`` says where its file is now, if it has moved."""
    from profl.campaign import Campaign
    from profl.campaign.log import read_log, source_of

    url = url_of(db)
    name = name_of(url, name)
    journal = read_log(url, name)
    source = source_of(journal)
    journal.store.close()
    if problem is None and "problem" not in source:
        raise InputError(
            f"the campaign {name!r} was made in Python, and the database does not say where its problem is: go on with "
            "it in Python"
        )
    folder = folder_of(url)
    moved = None if problem is None else problem.rpartition(":")[0]
    own = import_problem(problem or placed(source["problem"], folder))
    method = method_of(source.get("method", {}), folder, moved)
    stop = StopWhenSettled(**source["stop"]) if source.get("stop") else None
    return Campaign(url, own, method, name=name, stop=stop)


def import_problem(spec: str) -> Problem | LiveProblem:
    """The problem that FILE.py:NAME names."""
    problem = import_object(spec)
    if not isinstance(problem, (Problem, LiveProblem)):
        raise InputError(f"{spec} must be a profl.LiveProblem or a profl.Problem, got a {type(problem).__name__}")
    return problem


def method_of(words: dict[str, Any], folder: Path | None, moved: str | None = None) -> Method:
    """The method that words of the log stand for; ``moved`` is where the problem's file is now."""
    if "object" not in words:
        options = {key: value for key, value in words.items() if key != "name"}
        [method, *more], _ = make_methods(words.get("name", "prm"), RunOptions(case="", **options))
        if more:
            raise InputError(f"one method, please, got {words['name']}")
        return method
    spec = words["object"]
    if moved and words.get("beside"):
        spec = f"{moved}:{spec.rpartition(':')[2]}"
    method = import_object(placed(spec, folder))
    if not isinstance(method, Method):
        raise InputError(f"{spec} must be a method such as profl.prm(), got a {type(method).__name__}")
    return method


def method_words(text: str, options: dict[str, Any], problem: str, folder: Path | None) -> dict[str, Any]:
    """What is kept of a method in the log: a name with options, or FILE.py:NAME."""
    if ":" not in text:
        return {"name": text, **{key: value for key, value in options.items() if value is not None}}
    if given := [key for key, value in options.items() if value is not None]:
        raise InputError(f"--{given[0].replace('_', '-')} is for methods by name; {text} has its own")
    beside = text.rpartition(":")[0] == problem.rpartition(":")[0]
    return {"object": kept(text, folder), "beside": beside}


def kept(spec: str, folder: Path | None) -> str:
    """FILE.py:NAME as it is kept: relative to the database's folder if it lies in it, else with its whole path."""
    place, _, name = spec.rpartition(":")
    if not place.endswith(".py"):
        return spec
    path = Path(place).absolute()
    if folder is not None and path.is_relative_to(folder):
        path = path.relative_to(folder)
    return f"{path.as_posix()}:{name}"


def placed(spec: str, folder: Path | None) -> str:
    """A kept FILE.py:NAME as it is found from here."""
    place, _, name = spec.rpartition(":")
    if not place.endswith(".py") or folder is None:
        return spec
    return f"{folder / place}:{name}"


def client_names(text: str) -> list[str]:
    """Names from "Basel,Bern", or from the column ``client`` (else the first one) of a CSV file."""
    if not text.endswith(".csv") and not Path(text).is_file():
        return [name.strip() for name in text.split(",")]
    import csv

    if not Path(text).is_file():
        raise InputError(f"--clients: there is no file {text}")
    try:
        with open(text, newline="", encoding="utf-8-sig") as file:
            head, *rows = [row for row in csv.reader(file) if row]
    except (ValueError, UnicodeError, csv.Error) as error:
        raise InputError(f"--clients: {text} is no CSV file with a header and a client per line") from error
    at = head.index("client") if "client" in head else 0
    names = [row[at].strip() if len(row) > at else "" for row in rows]
    if not names or not all(names):
        raise InputError(f"--clients: {text} has {'lines without a client' if names else 'no clients'}")
    return names


def stopping(tolerance: float | None, cost: float | None) -> dict[str, Any] | None:
    """The arguments of ``StopWhenSettled``; None for a campaign that goes on until somebody ends it."""
    if tolerance is None and cost is None:
        return None
    stop: dict[str, Any] = {"tolerance": tolerance, "cost": 0.0 if cost is None else cost}
    StopWhenSettled(**stop)  # refused at once where it cannot be used
    return stop
