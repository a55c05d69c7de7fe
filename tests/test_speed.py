"""What the speed rests on, without a clock: the same numbers by the short way, and benchmarks that do the same work."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import profl
from benchmarks import peers
from profl import random, trees
from profl.parts import filters
from profl.problem import oracle
from profl.run import totals
from profl.run.plan import make_plan
from profl.run.step import sample_batch
from tests.problems import unmeasured

N, D = 500, 5
EQUAL = np.full(N, 1 / N, np.float32)


@partial(jax.jit, static_argnums=0)
def batches(count, share=0.0, distance=0.0):
    """Clean Gaussian batches (count, d, n) with a share moved along the diagonal."""
    clean = jax.vmap(lambda key: random.normal(key, N, D).T)(jax.random.split(random.seed_key(0), count))
    return clean + jnp.where(jnp.arange(N) < share * N, distance / np.sqrt(D), 0.0)


def remembered(points, weights=EQUAL):
    """A function that says of (count, d, n) batches whether they are like these points."""
    rule = filters.RobustFilter()
    memory = jax.jit(lambda points: rule.search(points, weights)[1])(points)
    return jax.jit(jax.vmap(lambda each: rule.recall(memory, each, weights)[1]))


def test_few_clean_batches_are_searched_and_all_with_junk_are():
    """Once a clean one was: those with a share of junk, of another scale, of heavier tails or newly correlated are."""
    clean = np.array(batches(2000))
    usual = remembered(clean[0])
    assert np.asarray(usual(clean)).mean() > 0.99
    for share, distance in [(0.05, 7), (0.2, 5), (0.45, 5), (0.1, 10), (0.45, 300)]:
        assert not np.any(usual(batches(100, share, distance))), (share, distance)
    assert not np.any(usual(3 * clean[:100] ** 3))
    clean[0, 0, 3] = np.nan
    assert not np.asarray(usual(clean[:100]))[0]  # what cannot be told is looked at


def test_place_and_samples_of_weight_zero_do_not_matter_to_the_memory():
    points, weights = np.array(batches(1))[0], np.where(np.arange(N) < 400, 1 / 400, 0.0).astype(np.float32)
    usual = remembered(points, weights)
    weightless = points.copy()
    weightless[:, 400:] = 1e6
    assert np.all(usual(np.stack([points, points + np.float32(0.5), weightless])))


def test_what_is_written_out_is_what_was_made():
    def make():
        return {"x": random.normal(random.seed_key(0), 6, 2), "y": jnp.arange(6)}

    made = jax.jit(lambda yes: trees.materialise(make, yes))(np.asarray(True))
    jax.tree.map(np.testing.assert_array_equal, made, jax.jit(make)())


def test_a_batch_drawn_in_blocks_lies_in_memory_with_its_samples_innermost():
    """Were a sample's five numbers innermost, 100 samples would cost more than 1000 in one piece."""
    method = profl.profl(filter="none", samples=profl.parts.AdaptiveSamples(0.05, 50, 1000))
    plan = make_plan(profl.cases.pricing(clients=3), method, profl.RunConfig(rounds=1, local_steps=1))

    def means(keys, yes):
        def one(key, client):
            draw = partial(sample_batch, plan.settings, key, (), plan.models[0], client, 200)
            return jnp.full(200, 1 / 200) @ trees.materialise(draw, yes) ** 2

        return jax.vmap(one)(keys, plan.population.clients)

    code = jax.jit(means).lower(jax.random.split(random.seed_key(0), 3), True).compile().as_text()
    assert re.findall(r"f32\[3,5,200\]\{(.*?)\}\) conditional", code) == ["2,1,0"]


def test_the_risk_of_many_clients_is_summed_in_chunks(monkeypatch):
    case = profl.cases.pricing(clients=23)
    theta = np.full(5, 2.0)
    whole = case.risk(theta), case.gradient(theta), case.optimum, case.stable
    monkeypatch.setattr(oracle, "_CHUNK", 5)
    case = profl.cases.pricing(clients=23, seed=0)
    for compiled in (oracle._compiled, oracle._solver_values):
        compiled.clear_cache()
    parts = case.risk(theta), case.gradient(theta), case.optimum, case.stable
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_numpy_versions_find_the_optimum(threads):
    mu0 = peers._start(4, 1)[0]
    best = mu0 / (2 * 1.5)
    np.testing.assert_allclose(peers.numpy_batched(4, 2, 150, threads), np.tile(best, (2, 1)), atol=0.3)


def test_the_plain_loop_does_the_same():
    best = peers._start(2, 1)[0] / (2 * 1.5)
    np.testing.assert_allclose(peers.numpy_loop(2, 150), best, atol=0.3)


ON_FOUR = """
import json, sys, jax, profl
from tests.problems import unmeasured
method = profl.methods.ALGORITHMS[sys.argv[1]](**json.loads(sys.argv[2]))
for settings in json.loads(sys.argv[3]):
    run = profl.simulate(unmeasured(profl.cases.pricing(clients=6, goods=2)), method, **settings)
    print(json.dumps([jax.local_device_count(), run.theta.tolist()]))
"""


@pytest.mark.parametrize(
    ("name", "parts"),
    [("pfl", {"correction": "scaffold"}), pytest.param("pofl", {}, marks=pytest.mark.slow)],
    ids=["pfl, corrected", "pofl"],
)
def test_what_is_spread_over_devices_gives_the_same_run(name, parts):
    """Six seeds on three of four devices, two on each; so are the six clients of one seed, with what each keeps."""
    settings = {"rounds": 4, "local_steps": 2, "samples": 40, "progress": False}
    asked = [{**settings, "seeds": list(range(6))}, {**settings, "seeds": [0]}]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", ON_FOUR, name, json.dumps(parts), json.dumps(asked)],
        cwd=Path(__file__).parent.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    case, method = unmeasured(profl.cases.pricing(clients=6, goods=2)), profl.methods.ALGORITHMS[name](**parts)
    alone = profl.simulate(case, method, **asked[0])
    for line, seeds in zip(done.stdout.splitlines()[-2:], (6, 1), strict=True):
        devices, theta = json.loads(line)
        assert devices == 4
        np.testing.assert_allclose(theta, alone.theta[:seeds], atol=2e-6)


OTHER_LAYOUTS = [{"client_chunk": 2}, pytest.param({"client_chunk": 100}, marks=pytest.mark.slow)]


@pytest.mark.parametrize("other", OTHER_LAYOUTS, ids=str)
def test_how_a_run_is_laid_out_changes_nothing_but_its_memory(other):
    case = unmeasured(profl.cases.pricing(clients=7, goods=2))
    settings = {"rounds": 3, "samples": 40, "seeds": [0, 1], "progress": False}
    whole = profl.simulate(case, profl.pofl(), **settings)
    np.testing.assert_allclose(profl.simulate(case, profl.pofl(), **settings, **other).theta, whole.theta, atol=2e-6)


def test_a_layout_that_cannot_be_is_refused():
    case, settings = unmeasured(profl.cases.pricing(clients=7, goods=2)), {"rounds": 3, "samples": 40}
    with pytest.raises(profl.InputError, match="client_chunk must be a whole number of at least 1, got 0"):
        profl.simulate(case, profl.pofl(), **settings, client_chunk=0)


@pytest.mark.parametrize(
    ("clean", "junk", "rows"), [(2, 2, 2), pytest.param(9, 12, 3, marks=pytest.mark.slow)], ids=["2 x 2", "3 x 7"]
)
def test_only_what_needs_it_is_cut_however_batches_are_mapped(clean, junk, rows):
    filter_ = filters.RobustFilter()
    points = np.concatenate([batches(clean), batches(junk, 0.2, 10)]).swapaxes(1, 2).reshape(rows, -1, N, D)
    one = jax.jit(lambda seen: filter_(seen, EQUAL))
    alone = np.array([[one(batch) for batch in row] for row in points])
    together = jax.jit(jax.vmap(jax.vmap(lambda seen: filter_(seen, EQUAL))))(points)
    np.testing.assert_array_equal(np.asarray(together), alone)
    untouched = (alone == np.asarray(EQUAL)).all(-1).ravel()
    assert untouched[:clean].all()
    assert not untouched[clean:].any()


CASES = [
    profl.cases.pricing,
    *(pytest.param(profl.cases.get(name), marks=pytest.mark.slow) for name in ("strategic", "housing", "retail")),
]


@pytest.mark.parametrize("case", CASES)
def test_single_precision_steps_like_double(case):
    """Ten steps of PoFL on the same batches in both precisions."""
    problem = case(clients=2)
    theta, client = initial_model(problem), trees.to_device(trees.take(problem.clients, 0))
    draw = jax.jit(problem.reaction.sample, static_argnums=3)
    sampled = [jax.tree.map(np.asarray, draw(random.seed_key(k), theta, client, 500)) for k in range(10)]
    single = ten_steps(problem, sampled)
    with jax.enable_x64(True):
        double = ten_steps(problem, sampled)
        assert double.dtype == np.float64
    assert np.max(np.abs(single - double)) > 0
    np.testing.assert_allclose(single, double, rtol=2e-5, atol=2e-5)


def initial_model(problem):
    return jax.tree.map(lambda leaf: leaf[0], problem.initial_models([9]))


def ten_steps(problem, sampled):
    view, method = problem.functions.view(), profl.pofl(explore=None)
    theta, weights = trees.to_device((initial_model(problem), np.full(500, 1 / 500)))
    state = jax.jit(partial(method.init, view))(theta, trees.to_device(sampled[0]))
    step = jax.jit(partial(method.step, view))
    for batch in sampled:
        arrival = profl.methods.Arrival(trees.to_device(batch), weights, theta, np.asarray(False))
        theta, state, _ = step(state, theta, arrival, random.seed_key(0))
    return np.asarray(theta)


EVENTS = []
jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: EVENTS.append(name))


def compiled_programs(call):
    """How many programs JAX compiles in a call."""
    EVENTS.clear()
    call()
    return EVENTS.count("/jax/core/compile/backend_compile_duration")


def test_what_a_program_does_not_depend_on_compiles_nothing():
    """Other rounds, records and seeds, a learning rate, a tolerance, and 9 seeds where 10 were: nothing is compiled."""
    case = profl.cases.pricing(clients=3, goods=2)

    def run(method, rounds=2, seeds=range(10), **changes):
        settings = {"samples": 40, "local_steps": 2, "progress": False, **changes}
        return profl.simulate(case, method, rounds=rounds, seeds=seeds, **settings)

    sized = profl.parts.AdaptiveSamples
    pairs = [
        (lambda: run(profl.pofl()), lambda: run(profl.pofl(0.02), 7, range(20, 29), record_every=3)),
        (lambda: run(profl.pfl(optimiser=optax.adam)), lambda: run(profl.pfl(0.1, optimiser=optax.adam))),
        (
            lambda: run(profl.profl(filter="none", samples=sized(0.05, 20, 40))),
            lambda: run(profl.profl(0.02, filter="none", samples=sized(0.1, 20, 40))),
        ),
    ]
    for first, again in pairs:
        assert compiled_programs(first) > 0
        assert compiled_programs(again) == 0


def test_another_learning_rate_is_another_run():
    """The rate is an argument of the program: it must reach the step, alone or through an optimiser of one's own."""
    case, settings = profl.cases.pricing(clients=3, goods=2), {"rounds": 1, "local_steps": 1, "samples": 40}
    ends = [profl.simulate(case, profl.pfl(r), seeds=[0], progress=False, **settings).theta[0] for r in (0.01, 0.02)]
    moves = [end[1] - end[0] for end in ends]
    np.testing.assert_allclose(moves[1], 2 * moves[0], rtol=1e-3)


def picky(rate):
    """An optimiser that looks at the value of its learning rate, which so stays a constant."""
    return optax.sgd(rate if rate < 1 else 1.0)


def test_a_factory_that_looks_at_the_rate_gets_a_number():
    case, settings = profl.cases.pricing(clients=3, goods=2), {"rounds": 2, "samples": 40, "progress": False}
    own, plain = (profl.simulate(case, profl.pfl(0.02, optimiser=o), **settings) for o in (picky, optax.sgd))
    np.testing.assert_allclose(own.theta, plain.theta, atol=1e-6)


def test_what_is_counted_may_pass_two_thousand_million():
    count = totals.zero_totals(("loss",)).samples
    add = jax.jit(totals.add_to_count, static_argnums=1)
    for _ in range(3):
        count = add(count, 5, np.full(10_000_000, 1501, np.int32))
    count = add(count, 1, np.array([1, 2], np.int32))
    assert int(count.units) + totals.THOUSAND * int(count.thousands) == 3 * 5 * 15_010_000_000 + 3
