"""``profl check``: a sound problem passes, and each kind of mistake is found and named."""

from __future__ import annotations

import json
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import profl
from profl.cli import app
from profl.engines import conformance
from profl.engines.conformance import check


def revenue(theta, z):
    return -jnp.sum(theta * z)


def problem(**changes):
    parts = {
        "name": "shop",
        "loss": revenue,
        "family": profl.GaussianMean(),
        "sample": np.zeros(2),
        "initial": np.array([2.0, 2.0]),
        "project": profl.Box(0.0, 6.0),
    }
    return profl.LiveProblem(**{**parts, **changes})


class Shop:
    def __init__(self, gamma=2.0, junk=0.0, sd=1.0):
        self.gamma, self.junk, self.sd = gamma, junk, sd
        self.rng = np.random.default_rng(0)

    def deploy(self, theta, samples):
        demand = 6.0 - self.gamma * theta + self.sd * self.rng.normal(size=(samples, 2))
        demand[: int(self.junk * samples)] += 40.0
        return demand


def test_junk_is_drawn():
    """40 of 500 samples lie 30 off in the second coordinate, one alone on the other side."""
    rng = np.random.default_rng(0)
    batch = rng.normal(size=(500, 2))
    batch[:40, 1] += 30.0
    batch[40, 1] = -200.0
    finding = check(problem(), Says(batch))[-1]
    assert (finding.question, finding.verdict, "\n" in finding.detail) == ("junk", "warn", False)
    head, *rows = finding.picture.splitlines()
    assert head.startswith("sample[1] from -200 to 3")
    assert head.endswith("█ 459 kept, ░ 41 dropped")
    assert len(rows) == 12
    assert max(map(len, rows)) <= 80
    assert len({row.index("│") for row in rows}) == 1
    assert rows[0].startswith("< ")  # what lies beyond the picture is in its last bins
    assert rows[0].endswith("│░ + 1")
    assert rows[-1].startswith("> ")
    assert rows[-1].endswith("░ + 40")
    assert sum(int(row.split("█ ")[1]) for row in rows if "█" in row) == 459


@pytest.mark.parametrize(("junk", "word"), [(0.0, ""), (0.2, "if that is junk"), (0.3, "a second kind of customer")])
def test_the_advice_on_junk_is_honest(junk, word, monkeypatch):
    """Whatever the rule: here one that drops what lies 20 off."""
    monkeypatch.setattr(conformance, "RobustFilter", lambda: lambda g, w: jnp.where(jnp.abs(g[:, 0]) < 20, w, 0.0))
    finding = check(problem(), Shop(junk=junk))[-1]
    assert word in finding.detail
    assert bool(finding.picture) == (junk > 0)
    assert ("profl.profl" in finding.detail) == (junk == 0.2)


def verdicts(found):
    return {finding.question: finding.verdict for finding in found}


def test_a_sound_problem_passes():
    found = check(problem(), Shop())
    assert set(verdicts(found).values()) == {"ok"}, found
    assert [f.question for f in found] == [
        "structure", "batch", "losses", "gradient", "projection", "family", "noise", "reaction", "junk",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(profl.cases.group_pricing, marks=pytest.mark.slow),
        pytest.param(profl.cases.retail, marks=pytest.mark.slow),
        pytest.param(profl.cases.strategic, marks=pytest.mark.slow),
    ],
)
def test_the_cases_pass(case):
    assert "fail" not in verdicts(check(case(clients=2))).values()


@jax.custom_jvp
def wrong(x):
    return x**2


@wrong.defjvp
def _(primals, tangents):
    return wrong(primals[0]), 3 * primals[0] * tangents[0]


@dataclass(frozen=True)
class Biased(profl.GaussianMean):
    def estimate(self, batch, weights):
        return super().estimate(batch, weights) + 1.0


class Says(Shop):
    def __init__(self, answer):
        self.answer = answer

    def deploy(self, theta, samples):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("changes", "client", "question", "verdict", "detail"),
    [
        ({"loss": lambda t, z: t * z}, Shop(), "structure", "fail", "must be a scalar"),
        ({"initial": np.array([1.0, np.nan]), "project": lambda t: t}, Shop(), "structure", "fail", "not finite"),
        ({"loss": lambda t, z: jnp.sum(jnp.log(-t * z))}, Shop(), "losses", "fail", "NaN or Inf"),
        ({"loss": lambda t, z: jnp.sum(wrong(t)) - jnp.sum(z)}, Shop(), "gradient", "fail", "differs"),
        ({"loss": lambda t, z: jnp.sum(z)}, Shop(), "gradient", "fail", "is theta used"),
        ({"project": lambda t: 0.5 * t}, Shop(), "projection", "fail", "twice"),
        ({"family": Biased()}, Shop(), "family", "fail", "does not fit log_prob"),
        ({}, Shop(sd=5.0), "noise", "warn", "set its sd"),
        ({}, Shop(gamma=0.0), "reaction", "warn", "no reaction"),
        ({}, Shop(junk=0.2), "junk", "warn", "drop 2"),
        ({}, Says(np.zeros((500, 3))), "batch", "fail", "must have shape (2,)"),
        ({}, Says(None), "batch", "fail", "sent nothing"),
        ({}, Says(ConnectionError("no route")), "batch", "fail", "no route"),
        ({}, Says([["a", "b"]] * 500), "batch", "fail", "must hold numbers"),
    ],
)
def test_mistakes_are_found(changes, client, question, verdict, detail):
    found = check(problem(**changes), client)
    finding = next(f for f in found if f.question == question)
    assert finding.verdict == verdict
    assert detail in finding.detail
    failed = [f.question for f in found if f.verdict == "fail"]
    assert failed[:1] == ([question] if verdict == "fail" else [])


FILE = """
import numpy as np
import profl
from tests.test_check import Shop, problem as make
problem = make()
clients = [Shop(), Shop(junk=0.3)]
broken = make(loss=lambda t, z: t * z)
"""


def test_on_the_command_line(tmp_path):
    (tmp_path / "shops_to_check.py").write_text(FILE)
    place = str(tmp_path / "shops_to_check.py")
    report = tmp_path / "found.json"
    done = CliRunner().invoke(app, ["check", f"{place}:problem", "--client", f"{place}:clients", "--json", str(report)])
    assert done.exit_code == 0, done.output
    rows = json.loads(report.read_text())["findings"]
    assert {(row["client"], row["verdict"]) for row in rows if row["question"] == "junk"} == {(0, "ok"), (1, "warn")}
    assert "client 1, sample[" in done.output
    assert "░" in done.output
    assert CliRunner().invoke(app, ["check", f"{place}:broken"]).exit_code == 1
    with pytest.raises(profl.InputError, match="cannot import nowhere"):
        CliRunner().invoke(app, ["check", "nowhere:problem"], catch_exceptions=False)
