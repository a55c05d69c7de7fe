"""The leaderboard: sealed problems and their gaps, cells, ranks, going on after a cut, and the page in a browser."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

import profl
from profl import checks, random
from profl.cli import app
from profl.methods import pfl
from profl_papers import pieces
from profl_papers.leaderboard import board as work
from profl_papers.leaderboard import page, play, sealed, standings
from profl_papers.leaderboard.entries import ENTRIES, by_identity, choose, own_entry
from profl_papers.leaderboard.play import CONDITIONS, POOLED, Length
from profl_papers.leaderboard.rates import first_rate

SEED = 20_262
HOUSES = 2
"""The number of a sealed problem with house prices, the quickest to draw."""


@pytest.fixture(scope="module")
def houses():
    return sealed.draw_problem(SEED, HOUSES)


# -- sealed problems


def test_a_seed_draws_the_same_problem_again(houses):
    again, other = sealed.draw_problem(SEED, HOUSES), sealed.draw_problem(SEED + 1, HOUSES)
    assert again.facts == houses.facts
    for name, leaf in houses.problem.clients.items():
        np.testing.assert_array_equal(again.problem.clients[name], leaf)
    assert other.facts != houses.facts


def test_a_problem_has_a_gap_and_states_its_answers(houses):
    """House prices: the risk is a parabola, whose minimum is the optimum; the stable point solves a linear equation."""
    problem, facts = houses.problem, houses.facts
    a, gamma, alpha = problem.clients["a"][:, 0], problem.clients["gamma"], problem.weights
    second, ridge = (5 / 3) ** 2 + 1, 10 / 3
    optimum = alpha @ ((1 + gamma) * a) * second / (alpha @ (1 + gamma) ** 2 * second + ridge)
    stable = alpha @ a * second / (alpha @ (1 + gamma) * second + ridge)
    assert problem.optimum[0] == pytest.approx(optimum, abs=1e-3)
    assert problem.stable[0] == pytest.approx(stable, abs=1e-3)
    assert facts["gap"] == pytest.approx(problem.risk(problem.stable) - problem.risk(problem.optimum))
    assert facts["gap"] > 0
    assert sealed.STAKE <= facts["start"] <= 1 / sealed.STAKE


def test_draws_without_a_gap_or_that_start_at_the_optimum_are_refused():
    case = profl.cases.pricing(clients=2, goods=1)
    assert sealed.judge(case)[1] is None
    still = replace(case, clients={**case.clients, "gamma": np.full(2, 1e-6)})
    assert sealed.judge(still)[1] == "next to nothing to gain over retraining"
    assert sealed.judge(replace(case, initial=np.asarray(case.optimum, np.float32)))[1] == "starts near its optimum"


def test_hostile_clients_weigh_no_more_than_their_share():
    rng = np.random.default_rng(0)
    for weights in (np.full(10, 0.1), np.array([0.6, *[0.4 / 9] * 9]), np.array([0.3, 0.3, 0.3, 0.05, 0.05])):
        chosen = sealed.draw_hostile(rng, weights)
        assert len(chosen) == round(0.2 * len(weights))
        assert weights[list(chosen)].sum() <= 0.2 + 1e-9


def test_twelve_problems_of_five_kinds():
    found = sealed.slots()
    assert len(found) == 12
    assert {reaction for kind, reaction in found if kind == "prices"} == {
        "linear",
        "exponential",
        "threshold",
        "choice",
    }
    assert len({kind for kind, _ in found[:5]}) == 5  # side by side, none compiles another's programs


# -- cells


def test_a_cell_holds_what_the_run_ended_with(houses):
    """Retraining by exact figures: the share that is left, and deployments of a client until 5 % are."""
    entry = ENTRIES["pfl"]._replace(make=lambda: pfl(0.05))
    cells = play.play(entry, houses, Length(4, 2))
    assert set(cells) == set(CONDITIONS)
    clean = cells["clean"]
    settings = {"rounds": 4, "local_steps": 5, "samples": houses.samples, "seeds": range(2), "progress": False}
    run = profl.simulate(houses.problem, pfl(0.05), **settings)
    np.testing.assert_allclose(clean["left"], run.excess[:, -1] / houses.gap, rtol=1e-3)
    assert clean["deployments"] == 20
    for reached, excess in zip(clean["reached"], run.excess, strict=True):
        below = np.flatnonzero(excess <= 0.05 * houses.gap)
        assert reached == (5 * below[0] if below.size else None)
    assert cells["junk"]["left"] != pytest.approx(clean["left"])
    assert play.play_condition(ENTRIES["rgd"], houses, Length(1, 1), "hostile") == {"refused": POOLED}


def test_the_rate_makes_a_first_step_of_the_natural_scale():
    """One client, one good: 0.07 s |s g| / |s g| = rate |g|."""
    case = profl.cases.pricing(clients=1, goods=1)
    theta = case.initial_models((0,))[0]
    client = {name: np.asarray(leaf[0], np.float32) for name, leaf in case.clients.items()}
    z = np.asarray(case.reaction.sample(random.data_key(random.seed_key(0), 0, 0), theta, client, 100), float)
    losses, slopes = -theta * z[:, 0], -z[:, 0]
    scale = min(2.5, losses.std() / np.sqrt(slopes.var() + 0.01 * slopes.mean() ** 2))
    assert first_rate(case, 100) == pytest.approx(0.07 * scale / abs(slopes.mean()), rel=1e-3)


def test_every_entry_is_made_with_a_rate_of_its_own():
    """Gradient methods find theirs, but for three, which take the one they are told; the budget is said beside it."""
    made = {name: entry.method(0.3) for name, entry in ENTRIES.items()}
    rates = {name: method.settings().get("learning_rate") for name, method in made.items()}
    told = {name for name, rate in rates.items() if rate == 0.3}
    assert told == {"rrm", "dfo", "literal"}
    assert {name for name, rate in rates.items() if rate == "auto"} == set(ENTRIES) - told - {"prm", "two_stage"}
    assert {name for name, entry in ENTRIES.items() if entry.local_steps != 5} == {"prm"}


def test_a_problem_goes_to_another_process_by_names():
    call = pickle.loads(pickle.dumps(partial(play.play_problem, SEED, HOUSES, False, [ENTRIES["pfl"].identity])))
    assert by_identity(call.args[3][0]) is ENTRIES["pfl"]


def test_figures_are_above_the_optimum_that_was_drawn(houses):
    """Also where the run was measured against a worse one."""
    risks = houses.optimum_risk + houses.gap * np.array([[1.0, 0.5, 0.04, 0.2]])
    worse = houses.optimum_risk + 0.5 * houses.gap
    run = SimpleNamespace(
        deployments=10.0 * np.arange(4)[None],
        settings={"clients": 2},
        risk=risks,
        deployed_regret=risks - worse,
        optimum_risk=worse,
    )
    found = play.figures(run, houses)
    assert [found["left"][0], found["regret"][0]] == pytest.approx([0.2, 0.2])
    assert (found["reached"], found["deployments"]) == ([10.0], 15.0)


# -- standings


def cell(left, reached=None, cpu=1.0):
    return {"left": left, "regret": left, "reached": [reached] * len(left), "deployments": 200.0, "cpu": cpu}


def made_problem(number, cells):
    facts = {"number": number, "kind": "prices", "reaction": "linear", "what": "made < up", "refused_draws": {}}
    facts |= {"parameters": 2, "clients": 5, "samples": 50, "family": "GaussianMean", "heaviest": 0.2, "gap": 1.5}
    facts |= {"start": 0.5, "junk_distance": 9.0, "attack": "ipm", "hostile": [1]}
    return {"facts": facts, "cells": {name: dict.fromkeys(CONDITIONS, each) for name, each in cells.items()}}


def made_problems():
    ends = [(0.01, 0.9), (0.02, 1.1), (0.03, 1.0)]
    problems = []
    for i, (good, bad) in enumerate(ends):
        cells = {"good": cell([good, good], reached=10.0), "bad": cell([bad, None]), "odd": {"refused": "no push"}}
        problems.append(made_problem(i + 1, cells))
        problems[-1]["cells"]["bad"]["hostile"] = {"refused": POOLED}
    return problems


def test_standings_rank_by_medians_and_tell_what_diverged():
    good, bad, odd = standings.standings(made_problems(), ["good", "bad", "odd"])
    assert good["clean"]["left"] == pytest.approx(0.02)
    assert good["clean"]["quartiles"] == pytest.approx([0.0125, 0.0275])
    assert good["clean"]["rank"] == good["clean"]["rank_low"] == good["clean"]["rank_high"] == 1
    assert good["clean"]["reached"] == 10
    assert (bad["clean"]["diverged"], bad["clean"]["worst"], bad["clean"]["reached"]) == (3, None, None)
    assert odd["clean"]["reasons"] == ["no push"]
    assert "left" not in odd["clean"]
    assert bad["hostile"] == {"refused": 3, "reasons": [POOLED]}  # has no rank there


def test_ranks_that_hang_on_the_problems_are_spread():
    pairs = [(0.1, 0.2), (0.3, 0.1), (0.1, 0.2)]
    problems = [made_problem(i, {"one": cell([a]), "two": cell([b])}) for i, (a, b) in enumerate(pairs)]
    found = standings.ranks(problems, ["one", "two"], "clean")
    assert found["one"] == {"rank": 1, "rank_low": 1, "rank_high": 2}
    assert found["two"] == {"rank": 2, "rank_low": 1, "rank_high": 2}


# -- a user's own method


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("import profl\n\n\ndef make():\n    return profl.pfl(0.05)\n\n\nnothing = 3\nboth = make()\n")
    return path


def test_a_method_of_a_users_own_enters(mine, houses):
    entry = own_entry(f"{mine}:make")
    assert [each.name for each in choose(["pfl"], [f"{mine}:make"])] == ["pfl", f"{mine}:make"]
    assert own_entry(f"{mine}:both").method().name == "pfl"
    found = play.play(entry, houses, Length(4, 2), ["clean"])
    known = play.play(ENTRIES["pfl"]._replace(make=lambda: pfl(0.05)), houses, Length(4, 2), ["clean"])
    assert found["clean"]["left"] == pytest.approx(known["clean"]["left"])


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("make = 3", "make", "make must be a profl.methods.Method or make one, got a int"),
        ("def make():\n    return 3", "make", r"make\(\) must return a profl.methods.Method, got a int"),
        ("def make():\n    raise ValueError('no')", "make", r"make\(\) raised ValueError: no"),
        ("def make():\n    return 1", "other", "has no 'other'"),
        ("def (", "make", "cannot import"),
    ],
)
def test_what_is_no_method_is_one_sentence(tmp_path, text, name, message):
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(checks.InputError, match=message):
        CliRunner().invoke(app, ["leaderboard", "--method", f"{path}:{name}"], catch_exceptions=False)


def test_an_own_method_that_fails_in_a_run_is_one_sentence(houses, monkeypatch):
    def fail(*_, **__):
        raise ValueError("shapes")

    monkeypatch.setattr(play, "simulate", fail)
    entry = ENTRIES["pfl"]
    with pytest.raises(ValueError, match="shapes"):  # a bug of the library is no user's mistake
        play.play(entry, houses, Length(1, 1))
    with pytest.raises(checks.InputError, match="mine raised ValueError in a run: shapes"):
        play.play(entry._replace(name="mine"), houses, Length(1, 1))


# -- going on


@pytest.fixture
def played(monkeypatch):
    """Problems that nobody runs: (number, names) of every call."""
    calls = []

    def made(seed, number, quick, identities):
        calls.append((number, [identity[0] for identity in identities]))
        problem = made_problem(number + 1, {identity[0]: cell([0.1 * seed]) for identity in identities})
        return problem | {"made": {identity[0]: identity for identity in identities}}

    monkeypatch.setattr(play, "play_problem", made)
    return calls


def command(folder, *arguments):
    found = [
        "leaderboard",
        "--quick",
        "--only",
        "pfl,prm",
        "--workers",
        "1",
        "--out",
        str(folder),
        *map(str, arguments),
    ]
    return CliRunner().invoke(app, found, catch_exceptions=False)


def stored(folder):
    return json.loads((Path(folder) / "leaderboard.json").read_text())


def test_a_run_that_is_cut_off_goes_on_with_its_seed(played, tmp_path, monkeypatch):
    whole = pieces.results

    def cut(calls, workers):
        for i, found in enumerate(whole(calls, workers)):
            if i == 2:
                raise KeyboardInterrupt
            yield found

    monkeypatch.setattr(pieces, "results", cut)
    ended = command(tmp_path)
    assert ended.exit_code == 130
    first = stored(tmp_path)
    assert [len(first["problems"]), first["complete"]] == [2, False]
    assert f"--seed {first['seed']}" in ended.output
    assert "Not complete: 2 of 3" in (tmp_path / "leaderboard.html").read_text()
    monkeypatch.setattr(pieces, "results", whole)
    played.clear()
    assert command(tmp_path, "--json", tmp_path / "all.json").exit_code == 0
    last = stored(tmp_path)
    assert played == [(2, ["pfl", "prm"])]
    assert [last["seed"], last["complete"], last["drawn"]] == [first["seed"], True, "now"]
    assert json.loads((tmp_path / "all.json").read_text()) == last
    played.clear()
    command(tmp_path)
    assert played == []


def test_what_is_there_is_not_lost(played, tmp_path):
    assert command(tmp_path, "--seed", 5).exit_code == 0
    assert [stored(tmp_path)["seed"], stored(tmp_path)["drawn"]] == [5, "given"]
    with pytest.raises(checks.InputError, match="holds a quick run of seed 5: give --out another place, or --force"):
        command(tmp_path, "--seed", 6)
    command(tmp_path, "--seed", 6, "--force")
    assert stored(tmp_path)["seed"] == 6
    with pytest.raises(checks.InputError, match="seed must be a whole number of at least 0"):
        command(tmp_path, "--seed", -1, "--force")


def test_two_runs_draw_two_seeds(played, tmp_path):
    command(tmp_path / "a")
    command(tmp_path / "b")
    assert stored(tmp_path / "a")["seed"] != stored(tmp_path / "b")["seed"]


def test_a_method_that_comes_later_runs_alone_and_is_marked(played, tmp_path, mine):
    command(tmp_path)
    played.clear()
    name = f"{mine}:make"
    command(tmp_path, "--method", name)
    assert played == [(i, [name]) for i in range(3)]
    assert {each["name"]: each["late"] for each in stored(tmp_path)["methods"]} == {
        "pfl": False,
        "prm": False,
        name: True,
    }
    assert "came later" in (tmp_path / "leaderboard.html").read_text()
    played.clear()
    mine.write_text(mine.read_text().replace("0.05", "0.06"))
    command(tmp_path, "--method", name)
    assert played == [(i, [name]) for i in range(3)]
    assert {row["method"] for row in stored(tmp_path)["standings"]} == {"pfl", "prm", name}


# -- the page


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The page of a made board."""
    names = ["good", "bad", "odd"]
    made = work.empty(7, False, True) | {"complete": True}
    made["methods"] = [
        {"name": name, "text": "<b>x</b>", "own": name == "odd", "late": name == "odd", "local_steps": 5}
        for name in names
    ]
    problems = dict(enumerate(made_problems()))
    path = tmp_path_factory.mktemp("board") / "leaderboard.html"
    page.write_page(work.ordered(made, problems, complete=True), path)
    return path


def test_the_page_stands_alone_and_says_what_it_is(written):
    text = written.read_text()
    assert not re.search(r'(src|href)="(?!#|data:)', text)
    assert "<b>x</b>" not in text
    for words in ("Seed 7", "judges nothing", "rank 1 (1 to 1)", "no push", "3 diverged", "made &lt; up", POOLED):
        assert words in text, words


@pytest.fixture
def tab(browser, written):
    context = browser.new_context(viewport={"width": 390, "height": 844}, offline=True)
    opened = context.new_page()
    complaints: list[str] = []
    opened.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.goto(written.as_uri())
    opened.wait_for_selector("html[data-ready=yes]", state="attached")
    yield opened
    assert complaints == []
    context.close()


def names_in(opened):
    return [each.get_attribute("data-value") for each in opened.query_selector_all("#left tbody th")]


def test_a_header_sorts_by_pointer_and_by_key(tab):
    """What has no figure stays last, whichever way."""
    clean = tab.query_selector("#left th:nth-child(3)")
    assert clean.get_attribute("aria-sort") == "ascending"
    assert names_in(tab) == ["good", "bad", "odd"]
    clean.query_selector("button").click()
    assert clean.get_attribute("aria-sort") == "descending"
    assert names_in(tab)[-1] == "odd"
    name = tab.query_selector("#left th:nth-child(1)")
    name.query_selector("button").focus()
    tab.keyboard.press("Enter")
    assert (name.get_attribute("aria-sort"), clean.get_attribute("aria-sort")) == ("ascending", "none")
    assert names_in(tab) == ["bad", "good", "odd"]
    tab.keyboard.press("Space")
    assert names_in(tab) == ["odd", "good", "bad"]


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_runs_over_the_edge_in_light_and_dark(tab, width, scheme):
    tab.set_viewport_size({"width": width, "height": 844})
    tab.emulate_media(color_scheme=scheme)
    tab.eval_on_selector_all("details", "all => all.forEach(each => { each.open = true })")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    colour = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (colour == "rgb(255, 255, 255)") == (scheme == "light")
    boxes = tab.query_selector_all(".scroll")
    assert len(boxes) == 9
    if width == 390:
        assert any(box.evaluate("e => e.scrollWidth > e.clientWidth") for box in boxes)
