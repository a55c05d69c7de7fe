"""What does not fit together is refused when a problem is made: what was expected, what came, what to try."""

from __future__ import annotations

import random as python_random
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import profl
from profl import random
from profl.problem.validation import functions
from profl.problem.validation.samples import check_labels
from profl.run.config import RunConfig
from profl.run.live import batches
from tests.killed import CASE as SHOPS

RNG = np.random.default_rng(0)


def demand(key, theta, client, n):
    return client["a"] - theta + random.normal(key, n, 1)


def pairs(key, theta, client, n, y=lambda key, n: jax.random.bernoulli(key, 0.5, (n,)).astype(int)):
    return {"x": client["a"] - theta + random.normal(key, n, 1), "y": y(key, n)}


def labelled(y):
    return {"reaction": lambda *given: pairs(*given, y=y), "family": profl.ClassMeans(), "loss": pair_loss}


def pair_loss(theta, z):
    return jnp.sum(theta * z["x"]) * z["y"]


def own(**changes):
    parts = {
        "name": "own",
        "loss": lambda theta, z: -jnp.sum(theta * z),
        "family": profl.GaussianMean(),
        "reaction": demand,
        "clients": {"a": np.ones(3), "gamma": np.ones(3)},
        "initial": lambda key: jnp.ones(1),
    }
    return profl.Problem(**{**parts, **changes})


@dataclass
class Thawed(profl.Family):
    sd: float = 1.0

    def estimate(self, batch, weights):
        return weights @ batch


@dataclass
class ThawedReaction:
    level: float = 1.0

    def __call__(self, key, theta, client, n):
        return self.level - theta + random.normal(key, n, 1)


@dataclass(frozen=True)
class Missing(profl.GaussianMean):
    def log_prob(self, z, f):
        return z["x"] - f


class Plain(profl.Family):
    """No dataclass."""

    group_count = 2


class OwnHash(profl.GaussianMean):
    """Has a hash, and no answer to whether two of them are equal."""

    def __init__(self, middle):
        object.__setattr__(self, "middle", middle)

    def __hash__(self):
        return 1

    def __eq__(self, other):
        return self.middle == getattr(other, "middle", None)


@dataclass(frozen=True)
class HiddenArray(profl.GaussianMean):
    middle: np.ndarray = None

    def __hash__(self):
        return 1


class NoHash(profl.GaussianMean):
    def __hash__(self):
        raise RuntimeError("not today")


MISFITS = {
    # the family
    "gaussian for pairs": ({"reaction": pairs, "loss": pair_loss}, "GaussianMean takes an array of shape (n, p)",
                           "a dict with 'x' (n, 1) float32, 'y' (n,) int32", "profl.ClassMeans() or profl.Lin"),
    "classes for arrays": ({"family": profl.ClassMeans()}, 'ClassMeans takes {"x": an array (n, d)',
                           "an array of shape (n, 1), float32", "profl.GaussianMean()"),
    "regression without x": ({"family": profl.LinearGaussian(), "loss": lambda t, z: t[0] * z["y"],
                              "reaction": lambda key, t, c, n: {"y": random.normal(key, n, 1)[:, 0]}},
                             'LinearGaussian takes {"x"', "a dict with 'y' (n,) float32"),
    "numbers for vectors": ({"reaction": lambda *given: demand(*given)[:, 0]}, "shape (n,)", "batch[:, None]"),
    "tuples": ({"reaction": lambda *given: tuple(pairs(*given).values()), "family": profl.ClassMeans(),
                "loss": lambda t, z: t[0] * z[1]}, "a tuple of (n, 1) float32, (n,) int32", 'a dict such as {"x": x'),
    "a name": ({"family": "gaussian"}, "got 'gaussian'", "did you mean profl.GaussianMean()?", "profl.GroupShares()"),
    "a class": ({"family": profl.ClassMeans}, "try ClassMeans()"),
    "a number": ({"family": 3}, "family must be one of", "got 3"),
    "thawed family": ({"family": Thawed()}, "family must be hashable", "Thawed", "@dataclass(frozen=True)"),
    "array in family": ({"family": profl.GaussianMean(np.ones(1))}, "family must be hashable", "tuples in place"),
    "array compared": ({"family": HiddenArray(middle=np.ones(2))}, "must be comparable", "compare arrays, middle"),
    "compared to arrays": ({"family": OwnHash(np.ones(2))}, "must be comparable", "compare to ndarray, not to True"),
    "hash fails": ({"family": NoHash()}, "family must be hashable", "not today"),
    "error in log_prob": ({"family": Missing()}, "family.log_prob(z, f) raised"),
    # labels
    "float labels": (labelled(lambda key, n: jnp.ones(n)), "'y' (n,) float32", "whole numbers", "astype"),
    "bool labels": (labelled(lambda key, n: jnp.ones(n, bool)), "'y' (n,) bool", "astype"),
    "minus one": (labelled(lambda key, n: 2 * jax.random.bernoulli(key, 0.5, (n,)).astype(int) - 1),
                  "must be 0 or 1, got -1, 1", "(y + 1) // 2"),
    "from one": (labelled(lambda key, n: 1 + jax.random.bernoulli(key, 0.5, (n,)).astype(int)),
                 "must be 0 or 1, got 1, 2", "count from 0, y - 1"),
    "too many": (labelled(lambda key, n: jnp.arange(n) % 3), "got 0, 1, 2", "ClassMeans(classes=3)"),
    "groups": ({"family": profl.GroupShares(2), "loss": lambda t, z: t[0] * z["group"],
                "reaction": lambda key, t, c, n: {"group": jnp.arange(n) % 9 - 2}},
               "GroupShares(groups=2)", "got -2, -1, 0, 1, 2, 3, ...", "number them from 0"),
    "labels of the last client": ({**labelled(None), "clients": {"a": np.ones(3), "y": np.array([0, 1, 7])},
                                   "reaction": lambda key, t, c, n: {"x": random.normal(key, n, 1),
                                                                     "y": jnp.full(n, c["y"])}}, "got 7"),
    # the reaction
    "mistyped key": ({"reaction": lambda key, t, c, n: c["gama"] + random.normal(key, n, 1)},
                     "reaction(key, theta, client, n)", "'gama'", "client has 'a', 'gamma'", "did you mean 'gamma'?"),
    "ignores n": ({"reaction": lambda key, t, c, n: random.normal(key, 100, 1)}, "n samples in every leaf",
                  "[100] for n = 4 and [100] for n = 7", "does it use n?"),
    "one short": ({"reaction": lambda key, t, c, n: jnp.ones((n - 1, 1))}, "got [3] for n = 4"),
    "nothing": ({"reaction": lambda key, t, c, n: None}, "a batch of n samples, got None", "return"),
    "a string": ({"reaction": "linear"}, "reaction must be a function (key, theta, client, n) -> batch, got 'linear'"),
    "three arguments": ({"reaction": lambda key, t, n: random.normal(key, n, 1)}, "reaction(key, theta", "TypeError"),
    "host random": ({"reaction": lambda key, t, c, n: RNG.normal(size=(n, 1))}, "from key", "np.random", "every batch"),
    "host noise": ({"reaction": lambda key, t, c, n: c["a"] - t + RNG.normal(size=(n, 1))}, "from key", "np.random"),
    "host choice": ({"reaction": lambda key, t, c, n: jnp.arange(9.0)[np.array(python_random.choices(range(9), k=n))][
        :, None]}, "from key"),
    "if on a value": ({"reaction": lambda key, t, c, n: demand(key, t, c, n) if t[0] > 0 else None},
                      "TracerBoolConversionError", "jnp.where"),
    "numpy on traced": ({"reaction": lambda key, t, c, n: np.exp(np.asarray(t)) + random.normal(key, n, 1)},
                        "TracerArrayConversionError", "jax.numpy"),
    "thawed reaction": ({"reaction": ThawedReaction()}, "reaction must be hashable", "ThawedReaction", "frozen=True"),
    # the loss
    "vector": ({"loss": lambda t, z: t * z}, "must be a scalar, got shape (1,)", "jnp.sum"),
    "no return": ({"loss": lambda t, z: None}, "loss(theta, z)", "got None", "return"),
    "whole": ({"loss": lambda t, z: jnp.sum(z > t)}, "gradient in theta, got int32"),
    "key in loss": ({"loss": lambda t, z: t["price"] * z}, "loss(theta, z) raised"),
    "no loss": ({"loss": "mse"}, "loss must be a function (theta, z) -> number, got 'mse'"),
    # the rest
    "initial words": ({"initial": "zeros"}, "initial must be a model of numbers", "initial(key) -> theta", "'zeros'"),
    "no model": ({"initial": lambda key: None}, "initial(key) must return a model", "None"),
    "initial fails": ({"initial": lambda: jnp.ones(1)}, "initial(key) raised TypeError"),
    "project fails": ({"project": lambda t: t["a"]}, "project(theta) raised"),
    "signal fails": ({"signal": lambda t: t[0]}, "signal(theta) must be a vector"),
    "clients differ": ({"clients": [{"a": 1.0}, {"b": 1.0}]}, "client 0 has {'a': ()}", "client 1 {'b': ()}"),
    "ragged clients": ({"clients": [{"a": np.ones(2)}, {"a": np.ones(3)}]}, "client 1 {'a': (3,)}", "pad"),
    "a count": ({"clients": 3}, "one row per client", "np.arange(n)"),
    "words in clients": ({"clients": {"a": np.array(["x", "y"])}}, "clients['a'] must hold numbers"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISFITS)
def test_misfits_are_refused_with_words(name):
    changes, *words = MISFITS[name]
    with pytest.raises(profl.InputError) as caught:
        own(**changes)
    for word in words:
        assert word in str(caught.value)
    if " raised " in str(caught.value):
        assert str(caught.value.__cause__) != ""


def test_other_forms_are_accepted():
    """An array to start from, a list of dicts for the clients: the same problem."""
    other = own(initial=np.ones(1), clients=[{"a": 1.0, "gamma": 2.0}, {"a": 3.0, "gamma": 4.0}])
    assert other.count == 2
    np.testing.assert_array_equal(other.clients["a"], [1.0, 3.0])
    start = other.initial(random.seed_key(0))
    assert (start.dtype, start.tolist()) == (jnp.float32, [1.0])
    assert own(reaction=lambda key, t, c, n: jnp.ones((n, 1))).count == 3  # nothing random: meant, perhaps
    assert own(reaction=lambda key, t, c, n: np.ones((4, 1))[0] + random.normal(key, n, 1)).count == 3


def test_seeds_may_be_numpy_integers():
    for seeds in (3, np.int64(3), np.array(3), [np.int32(3)], np.array([3]), jnp.int32(3), jnp.array([3])):
        found = RunConfig(rounds=1, seeds=seeds).seeds
        assert found == (3,)
        assert type(found[0]) is int  # which JSON knows
    for seeds, word in (
        (1.5, "got 1.5"),
        (np.array([1.5]), "got 1.5"),
        (np.array([[1]]), r"got \[1\]"),
        ("12", "got '12'"),
        (True, "got True"),
        (None, "got None"),
    ):
        with pytest.raises(profl.InputError, match=word):
            RunConfig(rounds=1, seeds=seeds)


def test_seeds_of_numpy_give_the_same_run_everywhere():
    method, short = profl.pfl(), {"rounds": 2, "local_steps": 2, "samples": 20}
    made = [profl.cases.pricing(clients=2, goods=2, spread="uniform", seed=seed) for seed in (3, np.int64(3))]
    np.testing.assert_array_equal(*(case.clients["gamma"] for case in made))
    seeds = (3, np.int64(3))
    runs = [profl.simulate(SHOPS, method, seeds=seed, progress=False, **short) for seed in (3, np.array([3]))]
    runs += profl.compare(SHOPS, [method], seeds=np.arange(3, 4), progress=False, **short)
    for seed in seeds:
        clients = profl.worlds.simulated_clients(SHOPS, method, samples=20, seed=seed)
        runs.append(profl.train(SHOPS, method, clients, seed=seed, progress=False, **short))
    for run in runs[1:]:
        np.testing.assert_allclose(run.theta, runs[0].theta, atol=1e-6)
        assert run.seeds == (3,)
    flower = pytest.importorskip("profl.run.flower")
    made = [flower.Federation(SHOPS, method, 4, seed=seed, **short) for seed in seeds]
    assert made[0].digest == made[1].digest


def test_labels_of_live_batches_are_looked_at():
    like = {"x": np.zeros((1, 1), np.float32), "y": np.zeros(1, np.int32)}
    for y in (np.array([0, 1, 0, 1]), np.array([0.0, 1.0, 0.0, 1.0])):
        answer = {"x": np.ones((4, 1)), "y": y}
        assert batches.read_answer(answer, like, None, profl.ClassMeans(), 4)[0]["y"].tolist() == [0, 1, 0, 1]
    with pytest.raises(profl.InputError, match=r"must be 0 or 1, got -1, 1: use \(y \+ 1\) // 2"):
        batches.read_answer({"x": np.ones((4, 1)), "y": np.array([-1, 1, -1, 1])}, like, None, profl.ClassMeans(), 4)
    check_labels(profl.ClassMeans(3), np.array([0, 2]))
    check_labels(profl.GaussianMean(), None)
    with pytest.raises(profl.InputError, match=r"must be 0 or 1, got 0\.0, 0\.5"):
        check_labels(profl.ClassMeans(2), np.array([0.0, 0.5]))
    with pytest.raises(profl.InputError, match=r"the labels of Plain\(group_count=2\) must be 0 or 1, got 7"):
        check_labels(Plain(), np.array([7]))
    fractions = profl.LiveProblem("loans", pair_loss, profl.ClassMeans(), {"x": np.zeros(1), "y": 0.0}, np.ones(1))
    with pytest.raises(profl.InputError, match="whole numbers"):
        fractions.problem(2)


def test_the_key_is_looked_for_in_every_argument():
    given = {"theta": {"price": 1.0}, "client": {"gamma": 1.0}}
    with pytest.raises(profl.InputError, match="theta has 'price'; client has 'gamma'; it is in client"):
        functions.output_shapes("reaction", lambda theta, client: theta["gamma"], **given)
