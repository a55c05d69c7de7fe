"""The command line, as a person calls it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from importlib.metadata import version

import numpy as np
import pytest
from typer.testing import CliRunner

import profl
from profl import cli
from profl.cases import CASES
from profl.cli import app, main
from profl.cli import demo_runs as demo
from profl.cli.cases import ANSWERS, describe_case, stored_answers

SHORT = ["--rounds", "3", "--samples", "20", "--seeds", "0-1", "--clients", "2"]


def call(*arguments):
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def ended(monkeypatch, capsys, *arguments):
    """Exit status, and what went to stdout and stderr."""
    monkeypatch.setattr(sys, "argv", ["profl", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    return (end.value.code, *capsys.readouterr())


def _installed():
    return [tuple(map(int, version(name).split(".")[:2])) for name in ("typer", "click")]


def test_help_teaches():
    assert "profl demo" in call("--help").output
    text = call("run", "--help").output
    assert "Local steps per round" in text
    assert "Example" in text


@pytest.mark.skipif(
    _installed()[0] < (0, 21) and _installed()[1] >= (8, 5),
    reason="this Typer shows no help of arguments with this Click: pip install -c constraints.txt click",
)
@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["run"], ["orange_juice", "FILE.py:NAME", "--checkpoint", "--no-resume", "--adaptive", "sign_flip"]),
        (["compare"], ["orange_juice", "--wide", "--filter", "robust", "nnm+"]),
        (["check"], ["MODULE:NAME", "--hold"]),
        (["data", "get"], ["adult", "--force"]),
    ],
)
def test_help_shows_arguments_options_and_examples(command, shown, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    text = call(*command, "--help").output
    assert [word for word in [*shown, "Arguments", "Options", "Example: profl"] if word not in text] == []


def test_version_and_the_module():
    done = subprocess.run([sys.executable, "-m", "profl", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"profl {profl.__version__}\n"


def test_run_writes_json_plot_file_and_log(tmp_path):
    files = [str(tmp_path / name) for name in ("run.json", "run.png", "run.npz", "new/run.jsonl")]
    options = [text for pair in zip(["--json", "--plot", "--save", "--log"], files, strict=True) for text in pair]
    result = call("run", "housing", *SHORT, *options)
    assert result.exit_code == 0
    assert "excess over PO" in result.output
    content = json.loads((tmp_path / "run.json").read_text())
    run = profl.load(files[2])
    assert content["runs"][0]["tail_excess"]["mean"] == pytest.approx(run.tail_excess().mean())
    assert (tmp_path / "run.png").stat().st_size > 5000
    assert [json.loads(line)["round"] for line in (tmp_path / "new/run.jsonl").read_text().splitlines()] == [0, 1, 2, 3]


def test_quiet_prints_nothing(tmp_path):
    result = call("run", "housing", *SHORT, "--quiet", "--json", str(tmp_path / "a.json"))
    assert result.output == ""
    assert (tmp_path / "a.json").exists()


def test_compare():
    result = call("compare", "housing", *SHORT, "--algorithms", "pfl,pofl")
    assert result.exit_code == 0
    assert "pofl" in result.output


OWN = """
import profl
problem = profl.cases.housing(clients=2)
nothing = 3
"""


@pytest.fixture
def asked(monkeypatch):
    """What a command hands to the simulation, which does nothing."""
    calls = []

    def simulate(problem, method, config, execution):
        calls.append((problem, method, config))
        raise KeyboardInterrupt

    monkeypatch.setattr("profl.cli.run.simulate_config", simulate)
    monkeypatch.setattr("profl.cli.compare.simulate_config", simulate)
    return calls


def test_a_problem_of_ones_own(tmp_path, asked, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(OWN)
    ended(monkeypatch, capsys, "run", f"{tmp_path}/mine.py:problem", "--rounds", "2")
    assert asked[0][0].count == 2
    code, _, said = ended(monkeypatch, capsys, "run", f"{tmp_path}/mine.py:nothing")
    assert code == 2
    assert "must be a profl.Problem, got a int" in said


def test_the_robust_parts_are_reached(asked, monkeypatch, capsys):
    trouble = ["--junk", "0.2", "--source", "scaled", "--distance", "30", "--hostile", "0.3", "--attack", "nan"]
    parts = [
        "--filter",
        "paper",
        "--aggregate",
        "nnm+median:0.3",
        "--share",
        "2",
        "--adaptive",
        "0.1",
        "--window",
        "7",
        "--jacobian",
        "paper",
    ]
    ended(monkeypatch, capsys, "run", "housing", "-a", "profl", *trouble, *parts, "--stop", "0.5")
    problem, method, config = asked[0]
    assert problem.name == "housing with 20% scaled"
    assert problem.clients["distance"].tolist() == [30] * 10
    assert (config.attack, config.hostile, config.stop.tolerance) == ("nan", 0.3, 0.5)
    same = profl.profl(
        filter="paper",
        aggregate="nnm+median:0.3",
        share=2,
        samples=profl.parts.AdaptiveSamples(0.1),
        window=7,
        jacobian="paper",
    ).settings()
    assert method.settings() == same
    assert method.averaging.rule.hostile == 0.3
    ended(monkeypatch, capsys, "run", "housing", "-a", "profl", "--share", "shrink")
    assert asked[1][1].part(profl.parts.SharedJacobians).share == profl.server.Shrinkage()


def test_defaults_are_the_methods_own(asked, monkeypatch, capsys):
    for name in ("rrm", "prm", "pfl", "two_stage"):
        ended(monkeypatch, capsys, "run", "housing", "-a", name)
        assert asked[-1][1] == profl.methods.ALGORITHMS[name]()
        assert asked[-1][2].attack is None


def test_who_does_without_an_option_is_told(asked, monkeypatch, capsys):
    said = ended(monkeypatch, capsys, "compare", "housing", "-a", "profl,prm,pfl", "--filter", "robust")[2]
    assert "pfl takes no --filter and runs without" in said
    code, _, said = ended(monkeypatch, capsys, "compare", "housing", "-a", "rgd,pfl", "--filter", "robust")
    assert (code, said) == (2, "error: rgd, pfl take no --filter; methods that do: profl, prm, literal\n")


def test_compare_keeps_what_is_finished(tmp_path, monkeypatch, capsys):
    settings = {"rounds": 3, "samples": 20, "seeds": [0, 1], "progress": False}
    results = [profl.simulate(profl.cases.housing(clients=2), profl.pfl(), **settings)]

    def simulate(*_, **__):
        if not results:
            raise KeyboardInterrupt
        return results.pop()

    monkeypatch.setattr("profl.cli.compare.simulate_config", simulate)
    path = tmp_path / "a.json"
    code, shown, said = ended(monkeypatch, capsys, "compare", "housing", "-a", "pfl,pofl", "--json", str(path))
    assert code == 130
    assert said == f"interrupted in pofl; finished: pfl; what was done is in {path}\n"
    assert [run["algorithm"] for run in json.loads(path.read_text())["runs"]] == ["pfl"]
    assert "gap closed" in shown


def test_reproduce_keeps_what_is_finished(tmp_path, monkeypatch, capsys):
    claim = {"claim": "c", "expected": "at most 1", "measured": 0.5, "holds": True}
    result = {"item": "fig3a", "work": "paper", "seeds": 1, "seconds": 1.0, "rows": [{"a": 1.0}], "claims": [claim]}

    def reproduce(chosen, seeds, finished, **_):
        finished(result, False)
        raise KeyboardInterrupt

    monkeypatch.setattr("profl_papers.reproduce.reproduce", reproduce)
    path = tmp_path / "a.json"
    code, shown, said = ended(monkeypatch, capsys, "reproduce", "fig3a", "fig3b", "--json", str(path))
    assert code == 130
    assert said.endswith(f"interrupted; 1 of 2 items were finished; what was done is in {path}\n")
    assert json.loads(path.read_text())["items"] == [result]
    assert "at most 1" in shown


@pytest.mark.parametrize("names", [("housing", "adult"), pytest.param(tuple(CASES), marks=pytest.mark.slow)])
def test_cases(names, tmp_path, monkeypatch):
    monkeypatch.setattr("profl.cli.cases.CASES", {name: CASES[name] for name in names})
    result = call("cases", "--json", str(tmp_path / "cases.json"))
    assert result.exit_code == 0
    rows = {row["case"]: row for row in json.loads((tmp_path / "cases.json").read_text())["cases"]}
    assert tuple(rows) == names
    assert rows["housing"]["stable"][0] == pytest.approx(7.7273, abs=1e-4)


@pytest.mark.parametrize(
    "name", ["housing", *[pytest.param(n, marks=pytest.mark.slow) for n in CASES if n != "housing"]]
)
def test_stored_answers_are_those_of_today(name):
    known = stored_answers()
    if name not in known:
        pytest.skip("not stored: solved when asked for")
    found = describe_case(name, CASES[name])
    for key in ANSWERS:
        if found[key] is not None:  # its data are here
            np.testing.assert_allclose(known[name][key], found[key], atol=1e-5, rtol=1e-5)


def test_a_case_that_somebody_added_is_solved(tmp_path, monkeypatch):
    monkeypatch.setattr("profl.cli.cases.CASES", {"housing": lambda: profl.cases.housing(heterogeneity=0)})
    call("cases", "--quiet", "--json", str(tmp_path / "cases.json"))
    (row,) = json.loads((tmp_path / "cases.json").read_text())["cases"]
    assert row["optimum_risk"] == pytest.approx(5.556549, abs=1e-6)  # the closed form; with the default 5.6819


def small(rounds=40):
    return [demo.Trial("housing", profl.pfl(), rounds, 1), demo.Trial("housing", profl.profl(filter="none"), rounds, 1)]


def test_demo(tmp_path, monkeypatch):
    """Its form, on a problem that is quick to compile."""
    monkeypatch.setattr(demo, "problems", lambda: {"housing": profl.cases.housing(clients=2)})
    monkeypatch.setattr(demo, "trials", small)
    files = ["--out", str(tmp_path / "demo.png"), "--json", str(tmp_path / "d.json")]
    result = call("demo", "--rounds", "40", "--seeds", "0-1", *files)
    assert result.exit_code == 0
    assert "compiling" in result.stderr
    assert (tmp_path / "demo.png").stat().st_size > 5000
    runs = json.loads((tmp_path / "d.json").read_text())["runs"]
    names = [(case, method) for method in ("pfl", "profl") for case in ("housing", "housing with 20% blob")]
    assert [(run["case"], run["algorithm"]) for run in runs] == names
    closed = 1 - runs[3]["tail_excess"]["mean"] / (runs[3]["stable_risk"] - runs[3]["optimum_risk"])
    assert f"closed by profl {100 * closed:.1f} % in 40 deployments; pfl " in result.stdout


@pytest.mark.slow
def test_the_whole_demo_says_what_the_readme_says(tmp_path):
    """ProFL and prm keep nine tenths of the gap in trouble; retraining never closes any."""
    result = call("demo", "--out", str(tmp_path / "demo.png"), "--json", str(tmp_path / "d.json"))
    assert result.exit_code == 0
    for run in json.loads((tmp_path / "d.json").read_text())["runs"]:
        closed = 1 - run["tail_excess"]["mean"] / (run["stable_risk"] - run["optimum_risk"])
        assert closed > 0.9 or run["algorithm"] not in ("profl", "prm")
        assert closed < 0.1 or run["algorithm"] != "pfl"


def test_an_error_is_one_line_and_exit_2_of_the_process():
    done = subprocess.run([sys.executable, "-m", "profl.cli", "run", "prcing"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "did you mean 'pricing'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_brackets_are_no_markup(capsys):
    cli.print_error("this needs Flower: pip install 'profl[flower]'")
    assert capsys.readouterr().err == "error: this needs Flower: pip install 'profl[flower]'\n"


def test_missing_extras_are_named_before_any_work(asked, monkeypatch, capsys):
    monkeypatch.setattr("profl.cli.outputs.find_spec", lambda name: None)
    monkeypatch.setattr(demo, "demo", lambda **_: pytest.fail("it began"))
    for arguments in (["run", "housing", "--plot", "a.png"], ["demo"]):
        code, _, said = ended(monkeypatch, capsys, *arguments)
        assert code == 2
        assert "pip install 'profl[report]'" in said
    assert asked == []


GOOD = [["--rounds", "3"], ["--seeds", "1,2"], ["--quiet"], ["--participation", "0.5"], ["-n", "9"], ["--junk", "0.1"]]
BAD = [
    "--rounds 0|--rounds x|--rounds -3|--rounds|--local-steps 0|--samples 0|--samples 2.5|--seeds _|--seeds a",
    "--seeds 5-3|--seeds 99999999999|--clients 0|--clients two|--participation 0|--participation 1.5",
    "--participation nan|--learning-rate fast|--learning-rate -1|--learning-rate nan|--window 0|--window x",
    "--jacobian kallman|--filter rubust|--aggregate meen|--share x|--adaptive 0|--adaptive x|--stop -1|--stop nan",
    "--junk 0.7|--junk -0.1|--junk x|--junk 0.1 --source blobb|--junk 0.1 --distance 0|--junk 0.1 --distance inf",
    "--hostile 1|--hostile -0.2|--attack flip|--hostile 0.2 --attack _|--json DIR|--plot DIR/x.xyz|--plot DIR",
    "--plot FILE/x.png|--log DIR|--json FILE/a/b.json|--checkpoint FILE|--checkpoint FILE/in|-a poffl|-a _|-a ,",
    "--nonsense|--heterogeneity x|extra|--json DIR/same.png --plot DIR/same.png|--aggregate history:0.5",
    "--aggregate median:0.1|--aggregate krum:|--aggregate trimmed_mean:x",
]


@pytest.mark.parametrize("part", range(3))
def test_random_bad_options_are_one_line_and_exit_2(part, tmp_path, asked, monkeypatch, capsys):
    """A hundred each: one to three mistakes among good options; nothing is ever run."""
    draw = random.Random(part)
    (tmp_path / "file").write_text("")
    named = "|".join(BAD).replace("DIR", str(tmp_path)).replace("FILE", f"{tmp_path}/file")
    for _ in range(100):
        chosen = [text.split() for text in draw.sample(named.split("|"), draw.choice([1, 1, 2, 3]))]
        options = [*draw.sample(GOOD, draw.randint(0, 2)), *chosen]  # of an option given twice the last counts
        words = ["" if word == "_" else word for option in options for word in option]
        code, printed, said = ended(monkeypatch, capsys, draw.choice(["run", "compare"]), "housing", *words)
        assert (code, printed, said.count("\n"), said[:7]) == (2, "", 1, "error: "), (words, said)
    assert asked == []


def test_a_place_that_cannot_be_written_is_refused_by_every_command(tmp_path, monkeypatch, capsys):
    commands = "cases|demo|reproduce table1|data list|check a:b"
    for command in map(str.split, commands.split("|")):
        code, _, said = ended(monkeypatch, capsys, *command, "--json", str(tmp_path))
        assert (code, said) == (2, f"error: --json must name a file, got the folder {tmp_path}\n")
