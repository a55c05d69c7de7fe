"""No model that is not finite or outside its space is ever deployed, whoever computed it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import profl
from profl import trees
from profl.methods.method import Method
from profl.run.live.state import REFUSED
from profl.server import entries
from profl.server.gate import LARGEST_SIZE_RATIO, accept, inside
from tests.killed import CASE

BOX = profl.Box(0.0, 6.0)


def ball(theta):
    """The unit ball: a space whose projection rounds."""
    return theta / jnp.maximum(1.0, jnp.linalg.norm(theta))


def test_what_a_projection_returns_lies_inside():
    lies_inside = jax.jit(lambda point, factor: inside(ball, ball(point) * factor))
    for point in 10 * np.random.default_rng(0).normal(size=(50, 7)).astype(np.float32):
        assert bool(lies_inside(point, 1.0))
        assert not bool(lies_inside(point, 1.001)) or np.linalg.norm(point) < 1


@partial(jax.jit, static_argnums=2)
def accepted(models, sent, lies_inside, usual=0.0):
    return accept({"theta": entries.model(models)}, sent, lies_inside, usual)


def in_box(theta):
    return inside(BOX, theta)


@pytest.mark.parametrize("bad", [3e37, -1e-3, 6.01, np.nan, np.inf])
def test_at_rest_on_the_edge_one_report_goes_nowhere(bad):
    """Eight clients at rest on the edge of the box: the usual move is zero, and nothing is large beside it."""
    sent = np.array([6.0, 6.0], np.float32)
    models = np.tile(sent, (9, 1))
    models[4] = bad
    usable, usual = accepted(models, sent, in_box)
    assert usable.tolist() == [number != 4 for number in range(9)]
    assert float(usual) == 0.0


@pytest.mark.parametrize(("usual", "goes"), [(0.0, 1e-3 * (1 + np.sqrt(8))), (0.5, 0.5)])
def test_without_bounds_a_lone_mover_goes_no_absurd_way(usual, goes):
    """Compared with what was usual when clients last moved; before that, with the model's own size."""
    sent = np.array([2.0, 2.0], np.float32)
    for size, fits in ((0.99 * LARGEST_SIZE_RATIO * goes, True), (1.01 * LARGEST_SIZE_RATIO * goes, False)):
        models = np.tile(sent, (9, 1))
        models[4, 0] += size
        usable, after = accepted(models, sent, trees.all_finite, usual)
        assert usable.tolist() == [number != 4 or fits for number in range(9)]
        assert float(after) == usual


@pytest.mark.parametrize(("number", "fits"), [(9e14, True), (-9e14, True), (1.1e15, False), (-1e30, False)])
def test_a_number_whose_square_overflows_is_refused(number, fits):
    """Also a single number, which is compared with nothing, in an array or alone."""
    models, alone = np.zeros((3, 2), np.float32), np.array([1.0, number, 1.0], np.float32)
    reports = {"theta": entries.model(models), "loss": entries.statistic(alone)}
    usable = jax.jit(accept)(reports, np.zeros(2, np.float32))[0]
    assert usable.tolist() == [True, fits, True]


@dataclass(frozen=True)
class Careless(Method):
    """Deploys and reports what lies outside, and combines to something worse."""

    name = "careless"
    outside: bool = False

    def deploy(self, problem, state, key, theta):
        return jax.tree.map(lambda leaf: leaf - 100.0, theta), state

    def step(self, problem, state, theta, arrival, key):
        moved = theta + 100.0 if self.outside else theta + 0.01
        return moved, state, {"loss": jnp.zeros(())}

    def combine(self, problem, server, theta, reports, weights, accepted, key):
        return theta + 50.0, server, ()


class Noting:
    """A client that notes what it is asked to deploy."""

    def __init__(self, seen, answer=lambda samples: np.ones((samples, 2))):
        self.seen, self.answer = seen, answer

    def deploy(self, theta, samples):
        self.seen.append(theta)
        return self.answer(samples)


SHOP = profl.LiveProblem("shop", CASE.loss, profl.GaussianMean(), np.zeros(2), np.array([3.0, 3.0]), BOX)
FEW = {"rounds": 3, "local_steps": 2, "samples": 4, "progress": False}


def test_what_a_careless_method_deploys_is_projected_at_the_client_and_at_the_server():
    seen = []
    run = profl.train(SHOP, Careless(), [Noting(seen), Noting(seen)], **FEW)
    assert len(seen) == 12
    assert all(np.array_equal(theta, [0.0, 0.0]) for theta in seen)
    np.testing.assert_array_equal(run.theta[0, 1:], np.full((3, 2), 6.0))


def test_reports_outside_the_space_are_refused_and_told():
    with pytest.raises(profl.TooFewReports) as error:
        profl.train(SHOP, Careless(outside=True), [Noting([]), Noting([])], **FEW, patience=1)
    assert error.value.run.incidents == ((1, 0, REFUSED), (1, 1, REFUSED))


@dataclass(frozen=True)
class Overflowing(Method):
    """Comes to NaN with its first batch of ones."""

    name = "overflowing"

    def step(self, problem, state, theta, arrival, key):
        bad = jnp.all(arrival.batch == 1.0)
        return jnp.where(bad, jnp.nan, theta), state, {"loss": jnp.zeros(())}


def test_a_client_that_comes_to_nan_deploys_nothing_and_says_so():
    seen, others = [], []
    clients = [Noting(seen), *(Noting(others, lambda samples: np.zeros((samples, 2))) for _ in range(2))]
    run = profl.train(SHOP, Overflowing(), clients, **FEW)
    assert len(seen) == FEW["rounds"]  # the first step of every round; the second has nothing to deploy
    assert all(np.isfinite(theta).all() for theta in (*seen, *others))
    assert [(round_, client) for round_, client, _ in run.incidents] == [(1, 0), (2, 0), (3, 0)]
    assert all("NaN or Inf" in what for _, _, what in run.incidents)
    assert np.isfinite(run.theta).all()


def test_a_cell_of_3e38_is_never_turned_into_a_deployment():
    """Sums of it overflow: the batch is refused in words, and the others go on."""

    def absurd(samples):
        return np.full((samples, 2), 3e38, np.float32)

    seen = []
    zeros = [Noting(seen, lambda samples: np.zeros((samples, 2))) for _ in range(2)]
    run = profl.train(SHOP, Overflowing(), [Noting(seen, absurd), *zeros], **FEW)
    assert all(np.isfinite(theta).all() for theta in seen)
    assert [client for _, client, _ in run.incidents] == [0] * FEW["rounds"]


@pytest.mark.parametrize("engine", ["fast", "debug"])
def test_hostile_clients_cannot_leave_the_box(engine):
    """40 % that push outwards with all they have."""

    @dataclass(frozen=True)
    class Outwards(profl.server.Attack):
        def reports(self, reports, sent, first, hostile):
            return jax.tree.map(lambda leaf: leaf + 3e37, reports)

    settings = {"rounds": 3, "local_steps": 1, "samples": 10, "seeds": 1, "progress": False}
    run = profl.simulate(CASE, profl.pfl(), attack=Outwards(), hostile=[0, 1], engine=engine, **settings)
    assert run.refused[0, -1] == 6
    assert np.isfinite(run.theta).all()
    np.testing.assert_array_equal(CASE.project(run.theta), run.theta)


def test_personal_parts_are_judged_without_what_stays_at_the_client():
    case = profl.worlds.personal(profl.cases.pricing(clients=2, goods=2))
    method = profl.pfl(0.2, personal="own")
    run = profl.simulate(case, method, rounds=5, local_steps=1, samples=20, seeds=1, progress=False)
    assert run.refused[0, -1] == 0
