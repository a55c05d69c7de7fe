"""Bad input gets a clear error before any work: what was expected, what came, what to try."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
import pytest

import profl
from profl import random
from profl.server.participation import choose
from tests.killed import CASE as SHOPS

CASE = profl.cases.pricing(clients=2, goods=2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 0}, "rounds must be a whole number of at least 1, got 0"),
        ({"rounds": -3}, "got -3"),
        ({"rounds": 2.5}, "got 2.5"),
        ({"rounds": 1, "samples": 0}, "samples must be a whole number of at least 1, got 0"),
        ({"rounds": 1, "samples": [5, -1]}, r"samples\[1\] must be a whole number of at least 1, got -1"),
        ({"rounds": 1, "samples": [5, 5, 5]}, r"one per client \(2\)"),
        ({"rounds": 1, "local_steps": 0}, "local_steps"),
        ({"rounds": 1, "record_every": 0}, "record_every"),
        ({"rounds": 1, "participation": 0.0}, r"participation must lie in \(0, 1\], got 0.0"),
        ({"rounds": 1, "participation": 1.5}, "got 1.5"),
        ({"rounds": 1, "participation": float("nan")}, "nan"),
        ({"rounds": 1, "scheme": "unifrm"}, "did you mean 'uniform'"),
        ({"rounds": 1, "engine": "fst"}, "unknown engine"),
        ({"rounds": 1, "engine": "debug", "checkpoint": "folder"}, "checkpoint needs engine='fast'"),
        ({"rounds": 1, "seeds": []}, "at least one seed"),
        ({"rounds": 1, "seeds": [-1]}, "seed"),
        ({"rounds": 1, "initial": jnp.ones(3)}, r"initial must have the structure and shapes \(2,\), got \(3,\)"),
        ({"rounds": 1, "initial": {"a": jnp.ones(2)}}, "structure"),
        ({"rounds": 1, "initial": jnp.array([1.0, jnp.nan])}, "NaN or Inf"),
    ],
)
def test_simulate_refuses(settings, message):
    with pytest.raises(profl.InputError, match=message):
        profl.simulate(CASE, profl.pofl(), progress=False, **settings)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: profl.pofl(explore=0.1), r"explore must be a profl.parts.Exploration\(...\) or None, got 0.1"),
        (lambda: profl.pofl(window=0), "window must be a whole number of at least 1, got 0"),
        (lambda: profl.pofl(learning_rate=0.0), "learning_rate must be a finite number above 0, got 0.0"),
        (lambda: profl.pfl(learning_rate=-1), "got -1"),
        (lambda: profl.pfl(learning_rate=float("inf")), "finite"),
        (lambda: profl.pofl(jacobian="papper"), "did you mean 'paper'"),
        (lambda: profl.pofl(second_term="pathwize"), "did you mean 'pathwise'"),
        (lambda: profl.pfl(optimiser="sgd"), "optax"),
        (lambda: profl.rrm(inner_steps=0), "inner_steps"),
        (lambda: profl.cases.get("houseing"), "did you mean 'housing'"),
        (lambda: profl.methods.get("pofll"), "did you mean 'pofl'"),
        (lambda: profl.cases.pricing(clients=0), "clients"),
        (lambda: profl.cases.pricing(goods=-1), "goods"),
        (lambda: profl.cases.pricing(heterogeneity=-0.1), "heterogeneity"),
        (lambda: profl.cases.pricing(spread="normal"), "spread"),
        (lambda: profl.cases.pricing(reaction="cubic"), "reaction"),
        (lambda: profl.cases.strategic(respond="some"), "respond"),
        (lambda: profl.cases.group_pricing(demand=[[1.0, 2.0]]), "groups >= 2"),
        (lambda: profl.cases.pricing(clients=2, weights=[0.5, 0.6]), "sum to 1, got a sum of 1.1"),
        (lambda: profl.cases.pricing(clients=2, weights=[1.5, -0.5]), "non-negative"),
        (lambda: profl.cases.pricing(clients=2, weights=[1.0]), "one number per client"),
        (lambda: CASE.risk(np.ones(3)), "structure and shapes"),
        (lambda: CASE.accuracy(np.ones(2)), "classification"),
        (lambda: CASE.pooled().jacobian(np.ones(2)), "no exact Jacobian"),
    ],
)
def test_makers_refuse(make, message):
    with pytest.raises(profl.InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("algorithm", "case", "message"),
    [
        (profl.pofl(second_term="pathwise"), profl.cases.retail(clients=2), "with shift.*use second_term='score'"),
        (profl.pg(jacobian="exact"), CASE, "pooled over clients"),
    ],
)
def test_algorithms_refuse_what_a_problem_cannot_give(algorithm, case, message):
    with pytest.raises(profl.InputError, match=message):
        profl.simulate(case, algorithm, rounds=1, progress=False)


def test_a_problem_or_algorithm_of_the_wrong_kind_is_refused():
    with pytest.raises(profl.InputError, match=r"profl\.Problem"):
        profl.simulate("pricing", profl.pofl(), rounds=1)
    with pytest.raises(profl.InputError, match=r"profl\.pofl\(\)"):
        profl.simulate(CASE, profl.pofl, rounds=1)


def own_problem(**changes):
    parts = {
        "name": "own",
        "loss": lambda theta, z: -jnp.sum(theta * z),
        "family": profl.GaussianMean(),
        "reaction": lambda key, theta, client, n: client["a"] - theta + random.normal(key, n, 1),
        "clients": {"a": np.ones(2)},
        "initial": lambda key: jnp.ones(1),
    }
    return profl.Problem(**{**parts, **changes})


@dataclass(frozen=True)
class Crooked(profl.GaussianMean):
    """A family whose pieces do not fit together."""

    wrong: str = "estimate"

    def estimate(self, batch, weights):
        return batch if self.wrong == "estimate" else super().estimate(batch, weights)

    def log_prob(self, z, f):
        return z - f if self.wrong == "log_prob" else super().log_prob(z, f)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": lambda theta, z: theta * z}, r"must be a scalar, got shape \(1,\)"),
        ({"family": Crooked(wrong="estimate")}, r"vector of shape \(p,\)"),
        ({"family": Crooked(wrong="log_prob")}, "log_prob"),
        (
            {"reaction": profl.worlds.SampledReaction(own_problem().reaction.function, lambda t, c: jnp.ones(2))},
            "the estimate",
        ),
        ({"reaction": lambda key, theta, client, n: jnp.ones((n - 1, 1))}, "n samples"),
        ({"clients": {}}, "at least one leaf"),
        ({"clients": {"a": np.ones(2), "b": np.ones(3)}}, "one row per client"),
        ({"project": lambda theta: theta[0]}, "project"),
        ({"signal": lambda theta: theta[0]}, "signal"),
    ],
)
def test_a_problem_that_does_not_fit_together_is_refused(changes, message):
    with pytest.raises(profl.InputError, match=message):
        own_problem(**changes)


@pytest.mark.parametrize("engine", ["fast", pytest.param("debug", marks=pytest.mark.slow), "train", "flower"])
def test_a_round_of_clients_without_weight_changes_nothing(engine):
    """Only client 1 has weight: where it is not asked the model stays, in every engine; else it is client 1's alone."""
    case, method = replace(SHOPS, weights=[0.0, 1.0, 0.0, 0.0]), profl.pfl()
    settings = {"rounds": 8, "local_steps": 2, "samples": 20, "participation": 0.5}
    clients = profl.worlds.simulated_clients(case, method, samples=20)
    if engine in ("fast", "debug"):
        run = profl.simulate(case, method, seeds=0, engine=engine, progress=False, **settings)
    elif engine == "train":
        run = profl.train(case, method, clients, patience=9, progress=False, **settings)
    else:
        flower = pytest.importorskip("profl.run.flower")
        federation = flower.Federation(case, method, 4, **settings)
        strategy = flower.ProFLStrategy(federation, wait=1.0, patience=9)
        run = strategy.run(flower.InProcessGrid(flower.make_client_app(federation, clients), 4))
    moved = np.any(np.diff(run.theta[0], axis=0) != 0, axis=1)
    root = random.seed_key(0)
    asked = [choose(random.participation_key(root, i), "uniform", 2, case.weights)[0].tolist() for i in range(8)]
    assert moved.tolist() == [1 in clients for clients in asked]
    assert 0 < moved.sum() < 8
    assert np.isfinite(run.theta).all()
    assert not run.refused[0, -1]
    assert not run.incidents


def test_a_client_with_all_the_weight_that_is_away():
    class Away:
        def deploy(self, theta, samples, step):
            return None

    case = replace(SHOPS, weights=[0.0, 1.0, 0.0, 0.0])
    clients = profl.worlds.simulated_clients(case, profl.pfl(), samples=20)
    with pytest.raises(profl.TooFewReports, match="client 1 sent nothing"):
        profl.train(case, profl.pfl(), [clients[0], Away(), *clients[2:]], rounds=9, samples=20, progress=False)


def test_numerical_answers_for_shares_need_f():
    sampled = own_problem(
        loss=lambda theta, z: z["x"] * theta[0],
        family=profl.GroupShares(2),
        reaction=lambda key, theta, client, n: {"x": jnp.ones(n), "group": jnp.zeros(n, int)},
    )
    with pytest.raises(profl.InputError, match="SampledReaction"):
        sampled.solve()
