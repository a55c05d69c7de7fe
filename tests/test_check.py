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
    assert CliRunner().invoke(app, ["check", f"{place}:broken"]).exit_code == 1
    with pytest.raises(profl.InputError, match="cannot import nowhere"):
        CliRunner().invoke(app, ["check", "nowhere:problem"], catch_exceptions=False)
