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
from tests.problems import Spreading, spreading


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
        "structure", "batch", "losses", "gradient", "projection", "family", "noise", "reaction", "memory", "drift",
        "spread", "junk",
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


# -- the world behind a client -----------------------------------------------------------------------------------------

PRICING = profl.cases.pricing(clients=2)
PLAIN = {
    "pricing": PRICING,
    "exponential": profl.cases.pricing(clients=2, reaction="exponential"),
    "housing": profl.cases.housing(clients=2),
    "strategic": profl.cases.strategic(clients=2),
    "retail": profl.cases.retail(clients=2),
    "group_pricing": profl.cases.group_pricing(clients=2),
}
SEEDS = range(10)


def of_the_world(world, seed, samples=500):
    """The findings on memory, drift and spread alone."""
    world, theta, like = conformance._structure(world, seed)
    deploy = conformance._deployer(world, None, samples, like, 60.0, theta, seed)
    return {f.question: f for f in conformance._world(world, theta, deploy(theta, 0), deploy, conformance.HOLD)}


def warned(world, seeds=SEEDS):
    """How often each question is answered with a warning."""
    found = [of_the_world(world, seed) for seed in seeds]
    return {name: sum(one[name].verdict == "warn" for one in found) for name in found[0]}


@pytest.mark.parametrize("case", ["pricing", "housing", *(pytest.param(c, marks=pytest.mark.slow) for c in PLAIN)])
def test_no_alarm_where_people_answer_at_once(case, request):
    full = request.node.get_closest_marker("slow")
    assert not any(warned(PLAIN[case], range(100) if full else SEEDS).values())


@pytest.mark.parametrize("case", ["pricing", "retail"])
@pytest.mark.parametrize("rate", [0.5, 0.2])
def test_slow_people_are_found(case, rate):
    world = profl.slow(PLAIN[case], rate)
    assert warned(world) == {"memory": 10, "drift": 0, **({"spread": 0} if case == "pricing" else {})}
    detail = of_the_world(world, 0)["memory"].detail
    low, high = (float(word.strip("():")) for word in detail.split("deployment ")[1].split()[:3:2])
    assert low / 1.15 <= rate <= high * 1.15  # to a step of the grid
    assert "jacobian='tracking', and judge a model only after" in detail


def test_a_drift_is_found_with_and_without_a_memory():
    assert warned(profl.drifting(PRICING, trend=0.01)) == {"memory": 0, "drift": 10, "spread": 0}
    both = profl.drifting(profl.slow(PRICING, 0.5), trend=0.02)
    assert warned(both) == {"memory": 10, "drift": 10, "spread": 0}
    assert "by up to 0.02" in of_the_world(both, 0)["drift"].detail


def test_a_spread_that_moves_is_found_where_the_family_takes_it_for_fixed():
    """log sd grows by 0.5 per unit of theta, which is 0.2 to 0.4 between the two models."""
    told = {family: spreading(family=family, reaction=Spreading().sample) for family in FAMILIES}
    assert warned(told[FAMILIES[0]]) == {"memory": 0, "drift": 0, "spread": 10}
    assert warned(told[FAMILIES[1]]) == {"memory": 0, "drift": 0, "spread": 0}
    detail = of_the_world(told[FAMILIES[0]], 0)["spread"].detail
    assert "GaussianMean takes it for fixed: use profl.LocationScale()" in detail


FAMILIES = (profl.GaussianMean(), profl.LocationScale())


def test_what_could_not_be_seen_is_said():
    """Shares of groups hardly move with prices: 500 samples show no reaction, and so no memory."""
    assert "too much the same to tell" in of_the_world(PLAIN["group_pricing"], 0)["memory"].detail
    plain = of_the_world(PRICING, 0)
    fastest = float(plain["memory"].detail.split("a rate of ")[1].split()[0])
    assert 0.5 < fastest < 0.9
    assert warned(profl.slow(PRICING, fastest))["memory"] >= 9
    assert "standard deviations of f_hat a deployment would not be" in plain["drift"].detail


class SlowShop(Shop):
    """A client of one's own, with a memory of its own that has seen other prices before."""

    used_to = 4.0

    def deploy(self, theta, samples):
        self.used_to = self.used_to + 0.3 * (theta - self.used_to)
        return super().deploy(self.used_to, samples)


def test_a_client_of_ones_own_with_a_memory():
    found = {f.question: f for f in check(problem(), SlowShop())}
    assert (found["memory"].verdict, found["drift"].verdict) == ("warn", "ok")
    assert "0.3 of the way" in found["memory"].detail or "0.29 of the way" in found["memory"].detail


class Days(Shop):
    """No day is like another: what all samples of a batch share is five times their own noise in f_hat."""

    def deploy(self, theta, samples):
        return super().deploy(theta, samples) + 5 / np.sqrt(samples) * self.rng.normal(size=2)


def test_noise_between_batches_is_no_memory():
    shops = [Days() for _ in SEEDS]
    for seed, shop in enumerate(shops):
        shop.rng = np.random.default_rng(seed)
        found = verdicts(check(problem(), shop))
        assert (found["memory"], found["drift"]) == ("ok", "ok")


def test_holding_can_be_left_out():
    assert "memory" not in verdicts(check(problem(), Shop(), hold=0))
    with pytest.raises(profl.InputError, match="at least 3, or 0"):
        check(problem(), Shop(), hold=2)


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
