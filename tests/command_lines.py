"""Command lines that nobody would type, deterministic from a number.

``python -m tests.command_lines NUMBER [FOLDER]`` shows one and runs it again.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import shlex
import socket
import sys
import traceback
from collections import Counter
from pathlib import Path
from unittest import mock

from profl import cli

STATUSES = (0, 1, 2, 130)
ENDED: Counter[object] = Counter()
ODD = ["", " ", "-1", "0", "nan", "inf", "1e999", "x", "²", "0-", "'", "[bold]", "\x1b[2J", "ü", "--", "-", "%s", "0.5"]
FILES = ["file", "folder", "file/below", "pipe/x", "dangling.json", "loop", "/dev/full", "/proc/version", "sealed"]
FILES += ["/proc/nowhere/x", "socket", "x" * 300, "fresh.png", "link.json", "/dev/null", "new/deep/fresh.json"]
ODD_CASES = [
    "prcing",
    "mine.py:problem",
    "mine.py:nothing",
    "broken.py:problem",
    "nowhere.py:problem",
    "math:pi",
    "math",
]
ODD_CASES += ["raises.py:problem", "file:x", ":", "folder:x", "json:loads"]
CASES = [*["housing"] * 16, *ODD_CASES]
METHODS = [*["pfl"] * 8, "rgd", "pfl,rgd", "pfl,pfl", "poffl", ","]

NUMBERS = {
    "--rounds": ["1", "2"],
    "--local-steps": ["1"],
    "--samples": ["5"],
    "--seeds": ["0", "0,1", "1-2"],
    "--participation": ["1.0", "0.5"],
    "--learning-rate": ["0.01", "auto"],
    "--hostile": ["0.5"],
    "--attack": ["sign_flip", "nan"],
    "--aggregate": ["mean", "median"],
    "--junk": ["0.1"],
    "--source": ["blob"],
    "--window": ["3"],
    "--stop": ["0.1"],
}
PLACES = ("--json", "--plot", "--log", "--checkpoint", "--save")
FRESH = {option: ["fresh.json", "link.json", "/dev/null", "new/run.jsonl"] for option in PLACES}
FRESH |= {"--plot": ["fresh.png", "new/a.svg"], "--checkpoint": ["kept", "new/kept", "folder"]}
SHORT = ["--rounds", "1", "--samples", "5", "--seeds", "0", "--local-steps", "1"]


def furnish(folder: Path) -> None:
    """The places that command lines name."""
    (folder / "folder").mkdir(parents=True)
    for name in ("file", "target.json", "sealed"):
        (folder / name).write_text("{}")
    (folder / "sealed").chmod(0)
    (folder / "link.json").symlink_to("target.json")
    (folder / "dangling.json").symlink_to("not-yet.json")
    (folder / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(folder):
        made.bind("socket")
    (folder / "mine.py").write_text("import profl\nproblem = profl.cases.housing(clients=2)\nnothing = 3\n")
    (folder / "broken.py").write_text("def (")
    (folder / "raises.py").write_text("raise SystemExit(7)\n")


def line(number: int) -> list[str]:
    """A command line; where it is all right, one that is soon done."""
    draw = random.Random(number)
    command = draw.choice([*["run"] * 5, *["compare"] * 3, "cases", "data", "check", "reproduce", "report", "campaign"])
    command = draw.choice(["flower", "demo", "", "rnu"]) if draw.random() < 0.1 else command
    return [command, *_arguments(draw, command)] if command else _arguments(draw, "")


def _arguments(draw: random.Random, command: str) -> list[str]:
    place = lambda: draw.choice(FILES)  # noqa: E731
    if command in ("run", "compare"):
        return _run(draw, command)
    if command == "check":
        few = ["--hold", "0", "--samples", draw.choice(["5", *ODD])]
        return [
            draw.choice(ODD_CASES),
            *few,
            *draw.choice([[], ["--json", place()], ["--client", draw.choice(CASES)]]),
        ]
    if command == "data":
        return draw.choice(
            [["list", "--json", place()], ["path", draw.choice([*ODD, "adult"])], ["get", "x"], ["nonsense"]]
        )
    if command == "reproduce":
        return draw.choice([["--list"], [draw.choice(ODD), "--out", place()], ["table1", "--json", "folder"]])
    if command == "report":
        return [place()]
    if command == "campaign":
        return _campaign(draw, place())
    if command == "cases":
        return draw.choice([[], ["--json", place()], ["--quiet"], ["--wide", draw.choice(ODD)]])
    if command == "flower":
        made = ["certificates", place(), "--clients", draw.choice(["1", *ODD])]
        return draw.choice([[], made, ["submit", place(), "--keys", place()], ["run", draw.choice(ODD)]])
    return draw.choice([["--help"], [draw.choice(ODD)], ["--version"], ["--json", "folder"]])


def _campaign(draw: random.Random, place: str) -> list[str]:
    """Commands of a campaign, which is there once one of them has made it."""
    db = ["--db", draw.choice([place, *["made.db"] * 20, "sqlite:///made.db", "nosuch://x", *ODD])]
    problem = draw.choice([*ODD_CASES, *["mine.py:problem"] * 10])
    made = ["new", problem, "--clients", draw.choice([*["a,b"] * 20, "a", "file", *ODD]), "-a", draw.choice(METHODS)]
    others = [
        ["ask", "--csv", place],
        ["tell", "--csv", place],
        ["tell", draw.choice(["1", *ODD]), place],
        ["skip", draw.choice(["1", *ODD]), draw.choice(ODD)],
        ["status", "--json", place],
        ["events", "--csv", place],
        ["page", "--out", place],
        ["plot", "--out", place],
        ["list"],
        [draw.choice(ODD)],
    ]
    return [*draw.choice([made, made, *others]), *db]


def _run(draw: random.Random, command: str) -> list[str]:
    words = [draw.choice(CASES), *SHORT]
    words += ["--clients", "2"] if words[0] == "housing" else []
    words += ["-a", draw.choice(METHODS)]
    for option in draw.sample(sorted(NUMBERS), draw.randint(0, 2)):
        words += [option, draw.choice(ODD if draw.random() < 0.2 else NUMBERS[option])]
    for option in draw.sample(PLACES[: 5 if command == "run" else 4], draw.randint(0, 3)):
        words += [option, draw.choice(FRESH[option] if draw.random() < 0.6 else FILES)]
    return words + draw.choice([[], ["--quiet"], ["--no-resume"], ["--quiet"], [draw.choice(ODD)]])


def check(number: int, folder: Path) -> str:
    """Run a line in a furnished folder; what is wrong with how it ended, or nothing."""
    words = line(number)
    if not folder.exists():
        furnish(folder)
    again = f"python -m tests.command_lines {number}  # profl {shlex.join(words)}"
    out, said = io.StringIO(), io.StringIO()
    try:
        printed = contextlib.redirect_stdout(out), contextlib.redirect_stderr(said)
        with contextlib.chdir(folder), mock.patch.object(sys, "argv", ["profl", *words]), printed[0], printed[1]:
            status = cli.exit_status()
    except SystemExit as end:
        status = end.code
    except BaseException as error:
        return f"{again}: {traceback.format_exception_only(error)[-1].strip():.300}"
    text = out.getvalue() + said.getvalue()
    ENDED[status] += 1
    if status not in STATUSES or "Traceback" in text:
        return f"{again}: status {status}: {text[-300:]}"
    if status == 2 and words[0] in ("run", "compare", "check", "campaign") and len(said.getvalue().splitlines()) != 1:
        return f"{again}: not one line: {said.getvalue()!r:.300}"
    return _harmed(folder, again)


def _harmed(folder: Path, again: str) -> str:
    """What a command must leave as it is."""
    kinds = {"link.json": "is_symlink", "dangling.json": "is_symlink", "loop": "is_symlink", "socket": "is_socket"}
    for name, is_so in kinds.items():
        if not getattr(folder / name, is_so)():
            return f"{again}: {name} is another kind of thing now"
    for device in ("/dev/null", "/dev/full"):
        if os.path.exists(device) and not Path(device).is_char_device():
            return f"{again}: {device} is no device any more"
    left = [file.name for file in folder.rglob(".*")]
    return f"{again}: left {left}" if left else ""


if __name__ == "__main__":
    where = Path(sys.argv[2] if len(sys.argv) > 2 else "out/command-lines")
    print(shlex.join(["profl", *line(int(sys.argv[1]))]))
    print(check(int(sys.argv[1]), where) or "as it should")
