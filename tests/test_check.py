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
from profl.run.diagnostics import HOLD, check, junk, reaction
from profl.run.diagnostics import drift_diagnostics as behind
from profl.run.diagnostics.subject import deployments, make_subject
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


@pytest.mark.parametrize(("share", "word"), [(0.0, ""), (0.2, "if that is junk"), (0.3, "a second kind of customer")])
def test_the_advice_on_junk_is_honest(share, word, monkeypatch):
    """Whatever the rule: here one that drops what lies 20 off."""
    monkeypatch.setattr(junk, "RobustFilter", lambda **_: lambda g, w: jnp.where(jnp.abs(g[:, 0]) < 20, w, 0.0))
    finding = check(problem(), Shop(junk=share))[-1]
    assert word in finding.detail
    assert bool(finding.picture) == (share > 0)
    assert ("profl.profl" in finding.detail) == (share == 0.2)


def test_an_undecided_group_is_told():
    """40 % of the samples 30 off: kept, and said so."""
    rng = np.random.default_rng(0)
    batch = rng.normal(size=(500, 2))
    batch[:200, 1] += 30.0
    finding = check(problem(), Says(batch))[-1]
    assert finding.verdict == "warn"
    assert "would drop 0.0%" in finding.detail
    assert all(word in finding.detail for word in ("40.0% lies apart", "undecided", "reference="))
    assert "░ 200 apart, undecided" in finding.picture


def test_zeros_apart_are_told_and_ordinary():
    rng = np.random.default_rng(0)
    batch = rng.normal(5, 1, size=(500, 2))
    batch[:150, 1] = 0.0
    finding = check(problem(), Says(batch))[-1]
    assert "30% of sample[1] are exactly zero" in finding.detail
    assert "would drop 0.0%" in finding.detail


def verdicts(found):
    return {finding.question: finding.verdict for finding in found}


def test_a_sound_problem_passes():
    found = check(problem(), Shop())
    assert set(verdicts(found).values()) == {"ok"}, found
    assert [f.question for f in found] == [
        "structure", "batch", "draws", "losses", "gradient", "projection", "family", "noise", "reaction", "memory",
        "drift", "spread", "junk",
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
        ({}, Says(np.random.default_rng(0).normal(size=(500, 2))), "draws", "warn", "very same samples"),
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


# -- who reacts, and how -----------------------------------------------------------------------------------------------


def lending(theta, z):
    score = jnp.sum(theta * z["x"])
    return jax.nn.softplus(jnp.where(z["y"] == 1, -score, score))


def applicants(key, theta, client, n):
    """Standardised features of two classes, 1 apart; everybody moves by -gamma theta."""
    what, who = jax.random.split(key)
    y = jax.random.bernoulli(who, 0.5, (n,)).astype(jnp.int32)
    return {"x": jax.random.normal(what, (n, 3)) + y[:, None] - client["gamma"] * theta, "y": y}


def lender(gamma):
    """Weights of 0.01, as credit models begin with: their natural unit is 0.01, too, since nobody is told apart yet."""
    clients = {"gamma": np.array(gamma, float)}
    family, start = profl.ClassMeans(), np.full(3, 0.01)
    return profl.Problem("lender", lending, family, applicants, clients, start, profl.Box(-10.0, 10.0))


def of_the_reaction(world, client=None, seed=0, samples=500):
    """The findings on who reacts alone."""
    subject = make_subject(world, client, seed)
    deploy = deployments(subject, client, samples, 60.0, seed)
    subject = subject.with_scales(deploy[0](subject.theta, 0))
    return {f.question: f for f in reaction.reaction_findings(subject, deploy)}


def test_a_lender_with_small_weights_is_seen_to_react():
    """A step of 0.4 natural units moves f by 0.004, of 50 by 0.5; its noise is 0.06."""
    found = [of_the_reaction(lender([0.5]), seed=seed)["reaction"] for seed in SEEDS]
    assert {finding.verdict for finding in found} == {"ok"}, found


def test_where_nobody_reacts_that_is_said():
    """One of 160 may be called unclear by chance, and 1 of 8,000 be seen to react."""
    found = [of_the_reaction(lender([0.0]), seed=seed)["reaction"] for seed in SEEDS]
    told = ["the samples do not depend on theta at all, and profl.pfl is enough" in finding.detail for finding in found]
    assert {finding.verdict for finding in found} == {"warn"}
    assert not any("the data move" in finding.detail for finding in found)
    assert sum(told) >= 9, found


@pytest.mark.slow
def test_deviations_are_those_of_a_normal_variable():
    """Of 400 looks at nobody's reaction, 2.3 % are beyond 2 deviations: 9 +- 3."""
    subject = make_subject(lender([0.0]), None, 0)
    found = []
    for seed in range(100):
        deploy = deployments(subject, None, 500, 60.0, seed)[0]
        ready = subject.with_scales(deploy(subject.theta, 0))
        models = ready.around(reaction.PAIRS, 1.0)
        found += [reaction._measure(ready, deploy, models, 2 + 8 * i).deviations for i in range(4)]
    assert abs(np.mean(found)) < 0.25
    assert 1 <= np.sum(np.array(found) > 2) <= 21


def test_clients_that_react_are_told_from_those_that_do_not():
    found = of_the_reaction(lender([2.0, 0.0, 3.0]))
    detail = found["reaction"].detail
    assert detail.startswith("the data move with the model at clients 0, 2: ")
    assert "no reaction at client 1" in detail
    assert found["clients"].verdict == "ok"


def test_a_reaction_that_turns_round_between_clients_is_found():
    finding = of_the_reaction(lender([2.0, 2.0, -2.0]))["clients"]
    assert finding.verdict == "warn"
    assert "at client 0 and " in finding.detail
    assert "at client 2 (6 of 6 entries)" in finding.detail
    assert of_the_reaction(lender([1.0, 2.0, 3.0]))["clients"].verdict == "ok"


def test_what_is_near_the_threshold_is_called_unclear():
    subject = make_subject(lender([1.0]), None, 0)
    finding = reaction._reaction_finding(subject, deployments(subject, Shop(), 500, 60.0, 0), np.array([3.4]), 50.0)
    assert (finding.verdict, finding.detail) == ("warn", "unclear: 3.4 standard deviations; try more samples")


class Counting(Shop):
    def __init__(self, gamma, broken=np.inf):
        super().__init__(gamma)
        self.asked, self.broken = [], broken

    def deploy(self, theta, samples):
        self.asked.append(theta)
        return super().deploy(theta, samples) + np.where(np.abs(theta - 2.0).max() > self.broken, np.nan, 0.0)


def test_steps_grow_only_where_nothing_is_seen_and_end_with_the_model_space():
    sees, blind, torn = Counting(2.0), Counting(0.0), Counting(0.0, broken=0.5)
    assert of_the_reaction(problem(), sees)["reaction"].verdict == "ok"
    assert len(sees.asked) == 1 + 2 * reaction.PAIRS
    assert "no reaction" in of_the_reaction(problem(project=profl.Box(1.5, 2.5)), blind)["reaction"].detail
    assert np.max(blind.asked) == 2.5  # the bound: one step beyond it was tried, and a second would be the same
    assert len(blind.asked) == 1 + 2 * 2 * reaction.PAIRS
    assert "under models 0.4 natural units" in of_the_reaction(problem(), torn)["reaction"].detail


def without_key(key, theta, client, n):
    return 6.0 - client["gamma"] * theta + jnp.linspace(-1, 1, n)[:, None]


def without_a_mean(key, theta, client, n):
    return client["gamma"] + jnp.exp(theta) * profl.random.normal(key, n, 1)


def sampled(function):
    return profl.Problem("own", revenue, profl.GaussianMean(), function, {"gamma": np.ones(1)}, np.ones(1))


def test_a_sampler_without_key_and_one_that_moves_something_else():
    found = {f.question: f for f in check(sampled(without_key), hold=0)}
    assert (found["draws"].verdict, "different keys are identical" in found["draws"].detail) == ("fail", True)
    assert "junk" not in found
    told = of_the_reaction(sampled(without_a_mean))["reaction"].detail
    assert "unclear" in told or "samples do change with theta, but f of GaussianMean" in told


def test_a_live_problem_may_have_weights_and_needs_a_client():
    assert verdicts(check(problem(weights=[0.25, 0.75]), Shop(), hold=0))["structure"] == "ok"
    found = check(problem())
    assert (found[-1].verdict, "--client" in found[-1].detail) == ("fail", True)


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
    subject = make_subject(world, None, seed)
    deploy = deployments(subject, None, samples, 60.0, seed)[0]
    subject = subject.with_scales(deploy(subject.theta, 0))
    return {f.question: f for f in behind.drift_findings(subject, deploy, HOLD, first=9)}


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
    world = profl.worlds.slow(PLAIN[case], rate)
    assert warned(world) == {"memory": 10, "drift": 0, **({"spread": 0} if case == "pricing" else {})}
    detail = of_the_world(world, 0)["memory"].detail
    low, high = (float(word.strip("():")) for word in detail.split("deployment ")[1].split()[:3:2])
    assert low / 1.15 <= rate <= high * 1.15  # to a step of the grid
    assert "jacobian='tracking', and judge a model only after" in detail


def test_a_drift_is_found_with_and_without_a_memory():
    assert warned(profl.worlds.drifting(PRICING, trend=0.01)) == {"memory": 0, "drift": 10, "spread": 0}
    both = profl.worlds.drifting(profl.worlds.slow(PRICING, 0.5), trend=0.02)
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
    assert warned(profl.worlds.slow(PRICING, fastest))["memory"] >= 9
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
