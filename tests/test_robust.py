"""Junk samples, small samples and hostile clients: each robust part against an exact answer, and the parts in a run."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import profl
from benchmarks import command, robust
from benchmarks.bench import Bench
from profl import trees
from profl.parts.filters import RobustFilter, keep_all
from profl.parts.gradient import PerformativeGradient
from profl.parts.part import Step
from profl.parts.sample_size import paper_size
from profl.parts.trusted_samples import filter_weights, gradients, initial_memory, samples
from profl.server import entries
from profl.server.attacks import apply, get
from profl.server.clusters import Clusters
from profl.server.participation import hostile_clients
from profl_papers.claims import Part, at_most
from tests.problems import QUICK, unmeasured

SHORT = {"rounds": 60, "samples": 500, "seeds": range(1), "progress": False}
FULL = {**SHORT, "seeds": range(2)}
PLAIN = profl.pofl(jacobian=QUICK)


@partial(jax.jit, static_argnums=(0, 1))
def step(view, filter_, theta, batch, weights, memory):
    """A filter's step; a client sees the same of a problem with junk and of one without: one program for both."""
    return filter_weights(view, filter_, theta, batch, weights, memory)


def weighed(problem, filter_, theta, batch, weights):
    view = problem.functions.view()
    return step(view, filter_, theta, batch, weights, empty(view, filter_, theta, batch))[:2]


empty = partial(jax.jit, static_argnums=(0, 1))(initial_memory)


def drawn(problem, theta, n=500, client=0, seed=0):
    return sample(problem.reaction, jax.random.key(seed), theta, trees.take(problem.clients, client), n)


@partial(jax.jit, static_argnums=(0, 4))
def sample(reaction, *arguments):
    return reaction.sample(*arguments)


# -- which samples to trust


def test_clean_classes_are_not_clean_and_junk():
    """Two classes far apart, a fifth of the samples in one of them: all are kept, and the shares stay."""
    problem = profl.cases.strategic()
    theta = np.zeros(2, np.float32)
    batch = drawn(problem, theta)
    y = np.asarray(batch["y"])
    weights = np.where(y == y.min(), 1.0, 0.25).astype(np.float32)
    weights = weights / weights.sum()
    believed, kept = map(np.asarray, weighed(problem, RobustFilter(), theta, batch, weights))
    assert kept > 0.99
    for label in (y.min(), y.max()):
        assert np.sum(believed[y == label]) == pytest.approx(float(np.sum(weights[y == label])), abs=1e-5)


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_junk_gets_no_weight_and_the_clean_keep_theirs(share):
    problem = profl.cases.pricing(heterogeneity=0)
    theta = np.full(5, 2.0, np.float32)
    batch = np.array(drawn(problem, theta))
    bad = np.arange(500) < 500 * share
    batch[bad] += 30.0
    believed, kept = weighed(problem, RobustFilter(), theta, batch, np.full(500, 1 / 500, np.float32))
    assert np.all(np.asarray(believed)[bad] == 0)
    assert kept == pytest.approx(1 - share, abs=0.02)
    assert np.sum(believed) == pytest.approx(1, abs=1e-5)


def test_no_filter_changes_nothing():
    problem = profl.cases.pricing()
    theta = np.full(5, 2.0, np.float32)
    weights = np.full(500, 1 / 500, np.float32)
    believed, kept = weighed(problem, keep_all, theta, drawn(problem, theta), weights)
    np.testing.assert_allclose(believed, weights, rtol=1e-6)
    assert kept == pytest.approx(1)


def test_the_robust_rule_sees_samples_and_not_gradients():
    """Housing: the gradient (theta x - y) x is skewed where x and y are not."""
    housing = profl.cases.housing()
    one, two, weights = np.ones(1, np.float32), np.ones(2, np.float32), np.full(500, 1 / 500, np.float32)
    batch = drawn(housing, one)
    look = jax.jit(lambda *seen: (samples(housing.functions, *seen), gradients(housing.functions, *seen)))
    seen, full = map(np.asarray, look(one, batch, weights))
    assert seen.shape == (500, 2)
    skew = [np.max(np.abs(np.mean(((v - v.mean(0)) / v.std(0)) ** 3, axis=0))) for v in (seen, full)]
    assert skew[0] < 0.5 < skew[1]
    strategic = profl.cases.strategic()  # labels are no numbers to look at
    assert samples(strategic.functions, None, drawn(strategic, two), weights).shape == (500, 2)


def test_the_share_that_is_kept_is_of_the_whole_batch_with_kinds_and_memory():
    """Two classes, each searched at first and recalled after."""
    problem = profl.worlds.contaminate(profl.cases.strategic(), 0.2, "blob", distance=10)
    theta, weights, rule = np.ones(2, np.float32), np.full(500, 1 / 500, np.float32), RobustFilter()
    view = problem.functions.view()
    memory = jax.jit(initial_memory, static_argnums=(0, 1))(view, rule, theta, drawn(problem, theta))
    for seed in range(5):
        believed, kept, memory = step(view, rule, theta, drawn(problem, theta, seed=seed), weights, memory)
        assert kept == pytest.approx(0.8, abs=0.06)  # three standard errors of a binomial
        assert np.sum(believed) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(("clients", "settings"), [(2, SHORT), pytest.param(10, FULL, marks=pytest.mark.slow)])
def test_with_the_filter_junk_costs_little_and_without_it_much(clients, settings):
    """Short form of ``python -m benchmarks robust``'s second part: 20 % of samples ten deviations away."""
    problem = profl.cases.pricing(clients=clients)
    none, case = (profl.worlds.contaminate(problem, share, "blob", distance=10) for share in (0.0, 0.2))  # one program
    methods = {name: profl.profl(filter=name, jacobian="kalman") for name in ("robust", "none")}
    clean = profl.simulate(none, methods["robust"], **settings).tail_excess().mean()
    runs = {name: profl.simulate(case, method, **settings) for name, method in methods.items()}
    assert runs["robust"].tail_excess().mean() <= 1.5 * clean + 0.01
    assert runs["none"].tail_excess().mean() >= 0.3
    assert runs["robust"].kept[:, 1:].mean() == pytest.approx(0.8, abs=0.01)
    assert np.all(runs["none"].kept == 1)


# -- how many samples


def test_adaptive_size_is_variance_over_tolerance():
    """Pricing: g_j = -z_j + J^T (-theta), so v = d = 5, and a tolerance of 0.05 asks for 100 samples."""
    problem, size = profl.cases.pricing(), profl.parts.AdaptiveSamples(0.05, 10, 1000)
    view = problem.functions.view()

    @jax.jit
    def wanted(theta, batch):
        weights = jnp.full(20000, 1 / 20000)
        step = Step(theta, theta, batch, weights, True, {}, f=jnp.mean(batch, 0), jacobian=-1.5 * jnp.eye(5))
        step, _ = PerformativeGradient().update(view, (), step, None)
        return size.update(view, jnp.int32(0), step, None)[1]

    theta = np.full(5, 2.0, np.float32)
    n = wanted(theta, drawn(problem, theta, 20000))
    assert int(n) == pytest.approx(100, abs=4)  # standard error of v: sqrt(2 * 5 / 20000) = 0.022, so 0.5 samples


def test_the_published_bound_is_guarded():
    losses, gradient, slope, one = (np.asarray(a, np.float32) for a in (np.full(10, 5.0), np.ones(5), np.eye(5), 1.0))
    bound = jax.jit(paper_size, static_argnums=(0, 1))
    for curvature, expected in ((10.0, 1000), (0.0, 1000)):
        size = profl.parts.AdaptiveSamples(0.05, 50, 1000, rule="paper", curvature=curvature)
        assert int(bound(size, 0.01, losses, gradient, slope, one)) == expected
    # Without curvature and with a tiny loss only |J|^2 s^2 log(2 / 0.05) / Phi is left: 5 * 3.69 / 0.05 = 369.
    size = profl.parts.AdaptiveSamples(0.05, 50, 1000, rule="paper")
    assert int(bound(size, 0.01, np.float32(1e-6) * losses, gradient, slope, one)) == pytest.approx(369, abs=1)


@pytest.mark.parametrize(
    ("most", "settings"), [(200, SHORT), pytest.param(1000, {**FULL, "rounds": 100}, marks=pytest.mark.slow)]
)
def test_adaptive_runs_draw_fewer_samples_within_the_tolerance(most, settings):
    """At most half of what they may."""
    method = profl.profl(filter="none", jacobian=QUICK, samples=profl.parts.AdaptiveSamples(0.1, 50, most))
    run = profl.simulate(profl.cases.pricing(), method, **{**settings, "samples": most})
    mean = run.samples[:, -1] / run.deployments[:, -1]
    assert np.all((mean >= 50) & (mean <= most / 2))
    assert run.tail_excess().mean() <= 0.1


# -- hostile clients


@jax.jit
def attacked(*arguments):
    """What is sent under every attack, by its name: one program; operation by operation it would be hundreds."""
    return {name: apply(get(name), *arguments) for name in profl.server.ATTACKS}


def rows(entry):
    """The numbers of a report's entry, one row per client."""
    return np.concatenate([np.asarray(leaf).reshape(len(leaf), -1) for leaf in jax.tree.leaves(entry)], axis=1)


def reports():
    theta = np.array([[1.0, 2.0], [1.2, 2.2], [0.8, 1.8], [1.1, 2.1]], np.float32)
    steps = np.array([10, 12, 8, 11], np.int32)
    return {
        "theta": entries.model(theta),
        "jacobian": entries.jacobian(10 * theta),
        "gradient": entries.gradient(10 * theta),
        "steps": entries.count(steps),
    }


SENT = {  # the model that the last of ``reports`` sends under each attack
    "sign_flip": [-1.1, -2.1],
    "scaled": [11.0, 21.0],
    "drift": [1.0 - 1.5 * np.std([1.0, 1.2, 0.8]), 2.0 - 1.5 * np.std([2.0, 2.2, 1.8])],
    "nan": [np.nan, np.nan],
    "stale": [9.0, 9.0],
    "jacobian": [1.1, 2.1],
    "f_hat": [1.1, 2.1],
    "ipm": [-1.5, -3.0],
    "alie": [1.0 + 0.430727 * np.std([1.0, 1.2, 0.8]), 2.0 + 0.430727 * np.std([2.0, 2.2, 1.8])],  # Phi(-0.43) = 1 / 3
    "min_max": [0.8, 1.8],
    "mimic": [1.2, 2.2],
}
"""Other entries are compared with zero, and so is the model here: they are ten times as much, but for these."""
OTHERS = {"stale": [0.0, 0.0]}
JACOBIAN = {"jacobian": [-550.0, -1050.0]}


@pytest.mark.parametrize("name", profl.server.ATTACKS)
def test_what_hostile_clients_send(name):
    hostile = np.array([False, False, False, True])
    honest = reports()
    sent = attacked(honest, np.zeros(2, np.float32), np.full(2, 9, np.float32), hostile)[name]
    sent = jax.tree.map(np.asarray, sent)
    for entry in sent:
        assert sent[entry].kind == honest[entry].kind
        assert sent[entry].value.dtype == honest[entry].value.dtype
        np.testing.assert_array_equal(sent[entry].value[:3], honest[entry].value[:3])
    other = OTHERS.get(name, 10 * np.array(SENT[name]))
    np.testing.assert_allclose(sent["theta"].value[3], SENT[name], rtol=1e-5)
    np.testing.assert_allclose(sent["gradient"].value[3], other, rtol=1e-5)
    np.testing.assert_allclose(sent["jacobian"].value[3], JACOBIAN.get(name, other), rtol=1e-5)
    whole = 2**31 - 1 if name == "nan" else round(other[0])  # the counts are the gradient's first column
    assert int(sent["steps"].value[3]) == whole


def test_a_number_too_large_is_the_largest_whole_one():
    zero, steps = np.zeros((), np.float32), np.full(2, 10**9, np.int32)
    counts = {"theta": entries.model(np.zeros(2, np.float32)), "steps": entries.count(steps)}
    sent = jax.jit(partial(apply, get("scaled")))(counts, zero, zero, np.array([False, True]))
    assert sent["steps"].value.tolist() == [10**9, 2**31 - 1]


def test_an_attack_returns_the_entries_that_it_got():
    class Renamed(profl.server.Attack):
        def reports(self, reports, sent, first, hostile):
            return {**reports, "theta": entries.statistic(reports["theta"].value)}

    with pytest.raises(profl.InputError, match=r"attack Renamed must return the entries that it got.*'theta': 'model'"):
        apply(Renamed(), reports(), jnp.zeros(2), jnp.zeros(2), jnp.ones(4, bool))


@dataclass(frozen=True, eq=False)
class Noting(profl.server.Attack):
    """Leaves everything as it is, and notes what it is asked to change."""

    notes: list = field(default_factory=list)

    def reports(self, reports, sent, first, hostile):
        jax.debug.callback(lambda *found: self.notes.append(found), reports, sent, first, hostile)
        return reports


ATTACKED = {
    "profl": profl.profl(filter="none", jacobian=QUICK, share="auto", correction="scaffold"),
    "prm": profl.prm(),
}
LEAVE_SOME = ("jacobian", "f_hat")  # as their docs say


@pytest.fixture(scope="module", params=ATTACKED)
def honest_turns(request):
    """What the clients send in every turn of three rounds, as an attack gets it."""
    method, attack = ATTACKED[request.param], Noting()
    settings = {"rounds": 3, "local_steps": 3, "samples": 50, "seeds": [0], "progress": False}
    profl.simulate(profl.cases.pricing(goods=2, heterogeneity=0.5), method, attack=attack, hostile=0.3, **settings)
    jax.effects_barrier()
    assert len(attack.notes) == 3 * (1 + method.exchanges)
    return attack.notes


@pytest.mark.parametrize("name", [name for name in profl.server.ATTACKS if name not in LEAVE_SOME])
def test_an_attack_changes_every_entry_in_every_turn(name, honest_turns):
    """The exception is a model that nobody has moved from what was sent, as in prm: there is nothing to turn around."""
    for number, (honest, sent, first, hostile) in enumerate(honest_turns):
        changed = attacked(honest, sent, first, hostile)[name]
        for entry in honest:
            own, other = (rows(report[entry])[hostile] for report in (honest, changed))
            rests = honest[entry].kind == "model" and bool(np.all(own == np.ravel(sent)))
            if not rests or name == "nan" or (name == "stale" and np.any(np.asarray(sent) != np.asarray(first))):
                assert np.all(np.any(own != other, axis=1)), (number, entry)


def test_a_poisoned_estimate_is_turned_around():
    np.testing.assert_allclose(get("f_hat").f_hat(jnp.array([2.0])), [-2.0])


LONGER = {**FULL, "rounds": 100}


@pytest.mark.parametrize(
    ("attack", "settings"),
    [("f_hat", SHORT), *(pytest.param(a, LONGER, marks=pytest.mark.slow) for a in ("scaled", "stale", "f_hat"))],
)
def test_the_fitting_rule_bounds_what_the_mean_does_not(attack, settings):
    """Short form of the benchmark's fifth part. One of ten clients hostile: 0.01 of the gap. Two of ten: 0.05;
    ``f_hat`` comes nearest, because the two lie near the reach, where they count as honest clients would."""
    case = profl.cases.pricing()
    gap = case.risk(case.stable) - case.risk(case.optimum)
    methods = {rule: profl.profl(filter="none", jacobian=QUICK, aggregate=rule) for rule in ("mean", robust.RULE)}
    for hostile, bar in ((0.1, 0.01), (0.2, 0.05)):
        excess = {
            rule: profl.simulate(case, method, attack=attack, hostile=hostile, **settings).tail_excess().mean()
            for rule, method in methods.items()
        }
        assert excess[robust.RULE] <= bar * gap
        assert excess["mean"] > excess[robust.RULE]


def test_refused_reports_are_counted_and_the_run_goes_on():
    run = profl.simulate(unmeasured(profl.cases.pricing()), PLAIN, attack="nan", hostile=[3, 5], **FULL)
    assert run.refused[:, -1].tolist() == [120, 120]
    assert run.first_refused == ((1, 3), (1, 3))
    assert not run.diverged.any()
    assert "client 3" in run.failures()[0]


@pytest.mark.parametrize("engine", ["fast", pytest.param("debug", marks=pytest.mark.slow)])
def test_too_few_reports_stop_the_run_and_keep_what_was_done(engine):
    settings = {"rounds": 4, "samples": 20, "seeds": [0], "progress": False, "engine": engine}
    case = unmeasured(profl.cases.pricing())
    with pytest.raises(profl.TooFewReports, match=r"round 1: fewer than min_reports=9 of the 10") as found:
        profl.simulate(case, PLAIN, attack="nan", min_reports=9, **settings)
    assert found.value.run.theta.shape[0] == 1
    run = profl.simulate(case, PLAIN, attack="nan", min_reports=8, **settings)
    assert run.rounds[-1] == 4


@pytest.mark.parametrize(
    ("count", "members"), [("auto", 11), (3, 11), pytest.param("auto", 33, marks=pytest.mark.slow)]
)
def test_one_poisoned_jacobian_moves_its_cluster_less_than_the_honest_spread(count, members):
    share = jax.jit(lambda rows: Clusters(count).share(jax.random.key(0), rows, everyone / len(rows), everyone > 0))
    everyone = np.ones(3 * members, np.float32)
    gamma = np.repeat([0.75, 1.5, 2.25], members)
    for seed in range(3):
        noise = np.random.default_rng(seed).normal(size=(3 * members, 5, 5))
        honest = (-gamma[:, None, None] * np.eye(5) + 0.15 * noise).astype(np.float32)
        before, labels = map(np.asarray, share(honest))
        assert len(set(labels.tolist())) == 3
        own = honest[:members]
        spread = np.sqrt(np.mean(np.sum((own - own.mean(0)) ** 2, axis=(1, 2))))
        for scale in (-50.0, -3.0, -1.0, 0.0, 2.0, 1e6):
            after = np.asarray(share(np.concatenate([np.float32(scale) * honest[:1], honest[1:]]))[0])
            assert np.sqrt(np.sum((after[5] - before[5]) ** 2)) <= 0.25 * spread


# -- bad input


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: profl.worlds.contaminate(profl.cases.pricing(), 0.5, "blob"), r"\[0, 0.5\)"),
        (lambda: profl.worlds.contaminate(profl.cases.pricing(), 0.1, "blub"), "did you mean"),
        (lambda: profl.parts.PaperFilter(segments=1), "B"),
        (lambda: profl.parts.PaperFilter(sparse=1.0), "J1"),
        (lambda: profl.parts.PaperFilter(settled=0.0), "J2"),
        (lambda: profl.parts.AdaptiveSamples(min_samples=100, max_samples=50), "100 > 50"),
        (lambda: profl.profl(samples=100), "AdaptiveSamples"),
        (lambda: profl.profl(filter=lambda g, w: -w), "0 or more"),
        (lambda: profl.profl(filter=lambda g, w: w * jnp.nan), "0 or more"),
        (lambda: profl.profl(filter=lambda g, w: 0 * w), "not all zero"),
        (lambda: profl.profl(filter=lambda g, w: w[:3]), r"shape \(3,\)"),
        (lambda: profl.profl(share=2, jacobian="exact"), "estimates Jacobians"),
        (lambda: profl.profl(aggregate="meen"), "did you mean"),
        (lambda: profl.simulate(profl.cases.pricing(), profl.profl(share=11), rounds=1), "at most 10"),
        (
            lambda: profl.simulate(profl.cases.pricing(), profl.pofl(), rounds=1, attack="flip"),
            "did you mean 'sign_flip'",
        ),
        (lambda: profl.simulate(profl.cases.pricing(), profl.pofl(), rounds=1, min_reports=11), "at most 10"),
        (lambda: hostile_clients([10], 10), "0 to 9"),
        (lambda: hostile_clients(1.0, 10), "share"),
    ],
)
def test_bad_input_gets_a_clear_error(make, message):
    with pytest.raises(profl.InputError, match=message):
        make()


# -- the benchmark's own form


def test_filter_needs_little_memory_beside_the_gradients():
    (claim,) = robust.memory().claims
    assert claim.holds
    assert claim.measured > 1


def test_filter_table_in_short(monkeypatch):
    monkeypatch.setattr(robust, "FIXED_SOURCES", ("blob",))
    found = robust.filter_alone(5)
    assert len(found.rows) == 6 * 4
    assert any(row["paper failed"] == 1 for row in found.rows)


def test_a_benchmark_prints_writes_and_fails_where_a_claim_does_not_hold(tmp_path, monkeypatch):
    def made(holds):
        part = Part([{"part": "sums", "of": 2}], [at_most("two and two", 4.0, 5.0 if holds else 3.0)])
        return Bench(timed={"sums": lambda: part})

    monkeypatch.setattr(command.track, "HERE", tmp_path)
    monkeypatch.setattr(command.track, "HISTORY", tmp_path / "history.jsonl")
    for holds, code in ((True, 0), (False, 1)):
        monkeypatch.setitem(command.BENCHMARKS, "speed", lambda seeds, quick, holds=holds: made(holds))
        path = tmp_path / f"{code}.json"
        result = CliRunner().invoke(command.app, ["speed", "--history", "--json", str(path)])
        assert result.exit_code == code
        assert ("yes" in result.output) == holds
        assert json.loads(path.read_text())["items"][0]["claims"][0]["holds"] == holds
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert [line["claims"] for line in lines] == [{"two and two": 4.0}] * 2
    assert (tmp_path / "history.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["robust", "jacobian"])
def test_bench_runs(name, tmp_path):
    path = tmp_path / "bench.json"
    CliRunner().invoke(command.app, [name, "--quick", "--seeds", "1", "--workers", "1", "--json", str(path)])
    (item,) = json.loads(path.read_text())["items"]
    assert item["item"] == name
    assert item["rows"]
    names = {"claim", "expected", "measured", "threshold", "holds", "paper", "far"}
    assert all(set(claim) == names for claim in item["claims"])
