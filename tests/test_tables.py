"""Tables of the command line: no number is ever cut, no line is too long, and a pipe gets whole lines."""

from __future__ import annotations

import io
import json
import os
import pty
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import profl
from profl.cli import cases, reproduce
from profl.cli.console import print_table
from profl.cli.result_tables import print_comparison, print_item
from profl.results.tables import comparison
from profl_papers.reproduce import choose

STORED = Path(__file__).parent.parent / "docs" / "results.json"


def printed(show, width=None):
    """What ``show(console)`` prints: in a terminal of ``width`` columns, or into a pipe."""
    file = io.StringIO()
    show(Console(file=file, width=width, force_terminal=True, color_system=None) if width else Console(file=file))
    return file.getvalue()


def assert_whole(text, width=None):
    assert "…" not in text
    if width:
        assert max(map(len, text.splitlines())) <= width


@pytest.fixture(scope="module")
def runs():
    """One run, and one that claims to be another method's: tables do not care."""
    case = profl.cases.housing(clients=2)
    run = profl.simulate(case, profl.pfl(), rounds=3, samples=20, seeds=range(2), progress=False)
    return [run, replace(run, algorithm="pofl", excess=run.excess / 12345)]


@pytest.mark.parametrize("width", [80, 50, 34])
@pytest.mark.parametrize("wide", [False, True])
def test_a_comparison_fits_and_has_every_number(runs, width, wide):
    text = printed(lambda console: print_comparison(console, "housing", runs, wide), width)
    assert_whole(text, width)
    for row in comparison(runs, wide)[1:]:
        assert all(cell in text for cell in row)


def test_what_a_gap_is_measured_against_is_said(runs):
    both, one = (
        printed(lambda console, some=some: print_comparison(console, "housing", some)) for some in (runs, runs[1:])
    )
    assert "excess / PFL's" in both
    assert "excess / the stable point's" in one


def test_a_pipe_gets_one_plain_line_per_row(runs):
    text = printed(lambda console: print_comparison(console, "housing", runs, wide=True))
    header, *rows = comparison(runs)
    lines = [re.split(r"  +", line.strip()) for line in text.splitlines()]
    assert header in lines
    assert all(row in lines for row in rows)
    assert text.replace("\n", "").isprintable()  # no colours


@pytest.mark.parametrize("seed", range(5))
def test_random_tables(seed):
    """A hundred per seed: words stay whole, numbers stay on one line, and what can fit does."""
    draw = random.Random(seed)
    for _ in range(100):
        columns, width = draw.randint(1, 12), draw.choice([40, 60, 80, 100])
        header = [f"column {'x' * draw.randint(0, 12)}{i}" for i in range(columns)]
        text = [name for i, name in enumerate(header) if i == 0 or draw.random() < 0.3]
        rows = [[_cell(draw, name in text) for name in header] for _ in range(draw.randint(1, 4))]
        for limit in (width, None):
            shown = printed(lambda console: print_table(console, "title", header, rows, text), limit)  # noqa: B023
            assert_whole(shown, limit)
            for row in rows:
                for name, cell in zip(header, row, strict=True):
                    assert all(word in shown for word in (cell.split() if name in text else [cell])), (cell, shown)


def _cell(draw, text):
    if text:
        return " ".join("w" * draw.randint(1, 12) for _ in range(draw.randint(0, 8)))
    return draw.choice(["-", f"{draw.uniform(-1e6, 1e6):.4g}", f"{draw.random():.4g} ± {draw.random():.3g}"])


@pytest.mark.skipif(not STORED.is_file(), reason="needs the repository: docs/ is not in the package")
@pytest.mark.parametrize("width", [80, None])
def test_every_result_of_the_paper_fits(width):
    for item in json.loads(STORED.read_text())["items"]:
        assert_whole(printed(lambda console, item=item: print_item(console, item), width), width)


@pytest.mark.parametrize("width", [80, None])
def test_items_fit(width):
    assert_whole(printed(lambda console: reproduce.print_items(console, choose([])), width), width)


@pytest.mark.parametrize("width", [80, 70])
def test_a_case_is_one_line(width):
    what = "Shelf prices of 11 orange juices at 83 real stores, profit in thousands of dollars per store and week."
    known = {"optimum": [0.123] * 11, "optimum_risk": -0.877, "stable": [0.5] * 11, "stable_risk": -0.6845}
    missing = dict.fromkeys(known)
    rows = [
        {"case": "orange_juice", "what": what, **known},
        {"case": "adult", "what": "Income. (needs: profl data get adult)", **missing},
    ]
    short = printed(lambda console: cases.print_cases(console, rows, wide=False), width)
    assert_whole(short, width)
    assert len(short.split("\n")) == len(rows) + 4  # title, header, and an empty line at the end
    assert "-0.8770" in short
    assert "needs: profl data get adult" in short
    wide = printed(lambda console: cases.print_cases(console, rows, wide=True), width)
    assert_whole(wide, width)
    assert wide.count("0.123") == 11
    assert what in printed(lambda console: cases.print_cases(console, rows, wide=False))


SMALL = "--rounds 3 -n 20 --seeds 0-1 --clients 2"
COMMANDS = [
    "reproduce --list",
    *(pytest.param(line, marks=pytest.mark.pages) for line in (f"run housing -a pfl {SMALL}", "cases")),
    pytest.param(f"compare housing -a pfl,rgd {SMALL} --wide", marks=pytest.mark.pages),
    *(pytest.param(line, marks=pytest.mark.slow) for line in ("demo --out {0}/demo.png", "reproduce table1 --quick")),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_in_a_terminal_of_80_columns(command, tmp_path):
    """Through a real one; and the same piped, where there are no colours either."""
    words = [sys.executable, "-m", "profl", *command.format(tmp_path).split()]
    environment = {**os.environ, "COLUMNS": "80", "LINES": "24", "TERM": "xterm"}
    ours, theirs = pty.openpty()
    process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    text = b""
    while part := _read(ours):
        text += part
    assert process.wait(timeout=600) in (0, 1)  # 1: a quick run proves nothing, and its claims need not hold
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.decode())
    assert_whole(shown.replace("\r", "\n"), 80)
    assert len(shown.split()) > 20
    piped = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "COLUMNS": "80"}).stdout
    assert_whole(piped)
    assert piped.replace("\n", "").isprintable()


def _read(terminal):
    try:
        return os.read(terminal, 4096)
    except OSError:  # Linux says so when the other side is closed
        return b""
