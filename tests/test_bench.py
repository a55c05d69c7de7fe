"""A benchmark's bookkeeping: parts in one process or several, runs cut off and gone on with, files of other things."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import jax
import pytest
from typer.testing import CliRunner

from benchmarks import bench, command
from benchmarks.bench import Bench
from profl import checks
from profl.data.dataset import MissingDataError
from profl_papers.claims import Part, at_most

RAN: list[str] = []
BROKEN: dict[str, BaseException] = {}
STATED = {"item": "made", "seeds": 2, "quick": False, "source": "here"}


@pytest.fixture(autouse=True)
def nothing_ran(monkeypatch):
    monkeypatch.setattr(jax, "clear_caches", lambda: None)  # the tests after these need what was compiled
    RAN.clear()
    BROKEN.clear()


def made_part(name: str, figure: float) -> Part:
    """A row and a claim; or what is broken."""
    if name in BROKEN:
        raise BROKEN[name]
    RAN.append(name)
    return Part([{"part": name, "figure": figure, "nothing": float("inf")}], [at_most(name, figure, 2.5)])


def total(rows) -> Part:
    return Part([{"part": "all", "sum": sum(row["figure"] for row in rows)}], [])


def made(seeds: int = 2, quick: bool = False) -> Bench:
    parts = {name: partial(made_part, name, figure) for name, figure in (("a", 1.0), ("b", 2.0), ("c", 3.0))}
    return Bench(parts, {"timed": partial(made_part, "timed", 4.0)}, total)


def without_times(found):
    return found | {"seconds": 0, "parts": [part | {"seconds": 0} for part in found["parts"]]}


def file_of(path: Path):
    (found,) = json.loads(path.read_text())["items"]
    return without_times(found)


@pytest.mark.parametrize("cut", ["a", "b", "c", "timed"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("a bug")])
def test_a_run_that_is_cut_off_goes_on_to_what_one_would_have_been(tmp_path, cut, error):
    whole = without_times(bench.run(STATED, made(), tmp_path / "whole.json"))
    assert RAN == ["a", "b", "c", "timed"]
    before, RAN[:] = RAN[: RAN.index(cut)], []
    BROKEN[cut] = error
    path = tmp_path / "cut.json"
    with pytest.raises(type(error)):
        bench.run(STATED, made(), path)
    assert before == RAN
    if before:
        assert [part["part"] for part in file_of(path)["parts"]] == before
        assert cut in file_of(path)["missing"]
    BROKEN.clear()
    assert without_times(bench.run(STATED, made(), path)) == whole
    assert file_of(path) == whole
    assert sorted(RAN) == sorted(["a", "b", "c", "timed"])  # each once
    assert whole["missing"] == []
    assert whole["rows"][-1] == {"part": "all", "sum": 10.0}
    assert whole["rows"][0]["nothing"] is None


def test_every_part_is_told_of_and_what_is_kept_is_not_run(tmp_path):
    told = []
    path = tmp_path / "made.json"
    bench.run(STATED, made(), path, finished=lambda name, done, count, total: told.append((name, count, total)))
    assert told == [("a", 1, 4), ("b", 2, 4), ("c", 3, 4), ("timed", 4, 4)]
    bench.run(STATED, made(), path)
    assert len(RAN) == 4
    bench.run(STATED, made(), path, fresh=True)
    assert len(RAN) == 8


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (STATED | {"seeds": 3}, "seeds 3, not 2"),
        (STATED | {"quick": True}, "quick True, not False"),
        (STATED | {"source": "there"}, "source 'there', not 'here'"),
        (STATED | {"item": "other"}, "item 'other', not 'made'"),
        ("no JSON", "no parts of a benchmark"),
        ([], "no parts of a benchmark"),
    ],
)
def test_a_file_of_something_else_is_refused_and_kept(tmp_path, content, message):
    path = tmp_path / "made.json"
    if isinstance(content, dict):
        bench.run(content, made(), path)
    else:
        path.write_text(json.dumps(content))
    before, RAN[:] = path.read_text(), []
    with pytest.raises(checks.InputError, match=f"{message}.*--fresh"):
        bench.run(STATED, made(), path)
    assert RAN == []
    assert path.read_text() == before
    bench.run(STATED, made(), path, fresh=True)
    assert file_of(path)["seeds"] == 2


def test_a_part_whose_data_are_missing_is_left_out_with_a_note_and_tried_again(tmp_path):
    BROKEN["b"] = MissingDataError("the adult data are not on this machine")
    path = tmp_path / "made.json"
    stated, parts = STATED, made()._replace(of_all=None)
    found = bench.run(stated, parts, path)
    assert "adult" in next(row for row in found["rows"] if row["part"] == bench.LEFT_OUT)["why"]
    assert [claim["claim"] for claim in found["claims"]] == ["a", "c", "timed"]
    BROKEN.clear()
    assert [claim["claim"] for claim in bench.run(stated, parts, path)["claims"]] == ["a", "b", "c", "timed"]
    assert RAN == ["a", "c", "timed", "b"]


def test_the_command_says_what_is_finished_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.setitem(command.BENCHMARKS, "robust", made)
    path = tmp_path / "made.json"

    def call(*more):
        return CliRunner().invoke(command.app, ["robust", "--seeds", "2", "--workers", "1", "--json", str(path), *more])

    BROKEN["c"] = KeyboardInterrupt()
    cut = call()
    assert cut.exit_code == 130
    assert "1 of 4  a: 1 of 1 claims hold" in cut.output
    assert f"interrupted; 2 parts were finished; the same command goes on from {path}" in cut.output.replace("\n", "")
    BROKEN.clear()
    assert call().exit_code == 1  # c does not hold
    assert RAN == ["a", "b", "c", "timed"]
    assert call("--quick").exception.args[0].startswith(f"{path} has quick False, not True")
    assert "of 4" not in call("--quiet").output


@pytest.mark.slow
def test_parts_in_processes_find_the_same(tmp_path):
    alone, beside = (without_times(bench.run(STATED, made(), workers=workers)) for workers in (1, 2))
    assert beside == alone


@pytest.mark.parametrize("name", command.BENCHMARKS)
def test_the_parts_of_every_benchmark_can_be_sent_to_a_process(name):
    import pickle

    for quick in (False, True):
        listed = command.BENCHMARKS[name](2, quick)
        assert listed.parts or listed.timed
        assert not set(listed.parts) & set(listed.timed)
        assert set(pickle.loads(pickle.dumps(dict(listed.parts)))) == set(listed.parts)
