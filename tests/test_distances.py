"""The rule that compares distances: worked numbers, who counts less and who does not, and what it remembers."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from profl.methods.method import Method
from profl.parts.averaging import Averaging
from profl.server.distances import ClientDistances, kept_shares, no_distances, reach_of, weigh_rows
from profl.server.rules import History, ReweightedMean, WeightedMean

TWICE = ReweightedMean(reach=2.0)
weigh = partial(jax.jit(weigh_rows, static_argnames=("hostile", "times")), times=2.0)


def told(rounds, hostile=0.2, weights=None, usable=None, who=None, clients=None):
    """(shares (t, k), the memory) after rounds (t, k, m) of reports."""
    rounds = np.asarray(rounds, np.float32)
    t, k, _ = rounds.shape
    who = np.tile(np.arange(k), (t, 1)) if who is None else np.asarray(who)
    usable = np.ones((t, k), bool) if usable is None else np.asarray(usable)
    weights = np.ones(k, np.float32) if weights is None else np.asarray(weights, np.float32)
    memory, shares = no_distances(clients or k), []
    for rows, yes, ids in zip(rounds, usable, who, strict=True):
        share, memory = weigh(memory, rows, weights, yes, ids.astype(np.int32), hostile=hostile)
        shares.append(np.asarray(share))
    return np.array(shares), jax.tree.map(np.asarray, memory)


def column(*values):
    return np.array(values, np.float32)[:, None]


def normal(rounds=1, clients=10, size=3, seed=0):
    return np.random.default_rng(seed).normal(size=(rounds, clients, size))


# -- one round


def test_one_round_by_hand():
    """0, 1, 2, 3 and 34: distances 2, 1, 0, 1 and 32 from the median 2. One of five may be hostile, so that the reach
    is twice the fourth distance, 4, and the last keeps (4 / 32)^2 = 1/64. It is distrusted since round 0."""
    shares, memory = told([column(0, 1, 2, 3, 34)])
    np.testing.assert_array_equal(shares[0], [1, 1, 1, 1, 1 / 64])
    np.testing.assert_array_equal(memory.mean, [2, 1, 0, 1, 32])
    assert memory.since.tolist() == [-1, -1, -1, -1, 0]
    assert memory.round == 1


@pytest.mark.parametrize(
    ("hostile", "reach"), [(0.0, 18.0), (0.19, 18.0), (0.2, 8.0), (0.39, 8.0), (0.4, 6.0), (0.49, 6.0)]
)
def test_the_reach_is_twice_the_distance_of_the_nearest_n_minus_f(hostile, reach):
    """Of 1, 2, 3, 4 and 9; three that have not reported yet do not count."""
    known = np.array([1, 2, 9, 3, 4, 0, 0, 0], np.float32)
    assert float(reach_of(known, known > 0, hostile, 2.0)) == reach


def test_a_share_of_the_clients_is_not_lost_to_rounding():
    """0.14 * 50 may be hostile, seven of fifty: the reach is twice the 43rd distance."""
    known = np.arange(1.0, 51.0, dtype=np.float32)
    assert float(reach_of(known, known > 0, 0.14, 2.0)) == 2 * 43


def test_what_a_client_pulls_grows_up_to_the_reach_and_falls_beyond():
    """share x distance: at most the reach, and nothing beyond a hundred times it, however large."""
    away = np.geomspace(1e-3, 1e30, 400).astype(np.float32)
    pull = np.asarray(kept_shares(away, np.float32(2.0))) * away
    assert pull.max() == pytest.approx(2.0, rel=0.1)
    assert np.all(np.diff(pull[away <= 2.0]) > 0)
    assert np.all(np.diff(pull[away > 2.0]) <= 0)
    assert np.all(pull[away > 201.0] == 0)


def test_within_the_reach_it_is_the_mean_to_the_bit():
    """Also with clients that differ for good, and with unequal weights."""
    mean = jax.jit(WeightedMean().aggregate_models)
    weighed = jax.jit(ReweightedMean().aggregate_weighed)
    for seed in range(5):
        rows = (normal(seed=seed) + np.random.default_rng(9).uniform(-2, 2, (10, 3))).astype(np.float32)[0]
        weights = np.random.default_rng(seed).uniform(0.5, 2.0, 10).astype(np.float32)
        weights, yes = weights / weights.sum(), np.ones(10, bool)
        shares, _ = told([rows], weights=weights)
        np.testing.assert_array_equal(shares, 1.0)
        expected = mean(rows, weights, yes, np.zeros(3, np.float32))
        np.testing.assert_array_equal(weighed(rows, weights * shares[0], yes, np.zeros(3, np.float32)), expected)


@pytest.mark.parametrize("clients", [1, 2, 3, 4])
def test_with_fewer_than_five_clients_nobody_is_outvoted(clients):
    rounds = normal(5, clients)
    rounds[:, 0] += 1e6
    np.testing.assert_array_equal(told(rounds)[0], 1.0)


def test_where_nobody_differs_nobody_loses():
    np.testing.assert_array_equal(told(np.full((3, 10, 4), 7.0))[0], 1.0)
    np.testing.assert_array_equal(told(np.zeros((3, 10, 4)))[0], 1.0)
    ties = np.repeat([[-1.0], [1.0]], 5, axis=0)  # half on either side: the median is between them
    np.testing.assert_array_equal(told([ties])[0], 1.0)


def test_beside_clients_that_agree_to_the_bit_the_others_do_not_count():
    """The reach is zero then: of ten, eight at rest on an edge of the space. Three that differ are more than may be
    hostile, and all count."""
    rows = np.zeros((10, 1))
    rows[8:] = [[0.1], [5.0]]
    np.testing.assert_array_equal(told([rows])[0][0], [1] * 8 + [0, 0])
    rows[7] = 0.1
    np.testing.assert_allclose(told([rows])[0][0], [1] * 9 + [(0.2 / 5) ** 2], rtol=1e-5)


def test_a_client_with_most_of_the_weight_is_not_far_from_itself():
    """60 % of the weight is the median: the others are compared with it, and all that lie alike count."""
    weights = np.array([0.6, *[0.4 / 9] * 9])
    rows = normal()[0]
    rows[0] += 100.0
    shares, memory = told([rows], weights=weights)
    assert memory.mean[0] == 0
    np.testing.assert_array_equal(shares[0], 1.0)


# -- several rounds


def test_the_mean_distance_is_over_a_clients_own_reports():
    """Distances 4 and 9 in the two rounds in which it answers: 0.9 * 4 + 0.1 * 9 = 4.5; 4 stays while it is away."""
    rounds = [column(0, 0, 0, 1, 4), column(0, 0, 0, 1, 7), column(0, 0, 0, 1, 9)]
    answers = np.ones((3, 5), bool)
    answers[1, 4] = False
    assert told(rounds[:2], usable=answers[:2])[1].mean[4] == 4
    assert told(rounds, usable=answers)[1].mean[4] == pytest.approx(4.5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_what_is_refused_does_not_enter_the_memory(bad):
    rounds = normal(3).astype(np.float32)
    rounds[1, 4] = bad
    answers = np.ones((3, 10), bool)
    answers[1, 4] = False
    shares, memory = told(rounds, usable=answers)
    rounds[1, 4] = 0.0
    others, clean = told(rounds, usable=answers)
    for field in ClientDistances._fields:
        np.testing.assert_array_equal(getattr(memory, field), getattr(clean, field))
    np.testing.assert_array_equal(shares[2], others[2])
    assert np.isfinite(memory.mean).all()


def test_a_client_that_weighs_nothing_is_not_remembered():
    answers = np.ones((1, 5), bool)
    answers[0, 2] = False
    memory = told([column(0, 1, 2, 3, 34)], usable=answers)[1]
    assert memory.mean[2] == -1


def test_a_client_is_forgiven_after_some_twenty_reports_like_the_others():
    """A mean distance is kept as at most ten times the reach, and 10 * 0.9^22 is below one."""
    rounds = np.repeat(column(-1, 1, -1, 1, 0, 0, -1, 1, 0.5, 0)[None], 40, axis=0)
    rounds[0, 9] = 1e6
    shares, _ = told(rounds)
    good = int(np.argmax(shares[:, 9] == 1.0))
    assert 20 <= good <= 24
    assert np.all(shares[good:, 9] == 1)
    assert np.all(np.diff(shares[:good, 9]) >= 0)


def test_since_names_the_first_round_of_a_streak():
    """Far in rounds 2 and 3 of nine: distrusted from round 2 until its mean is near again, and from 8 anew."""
    rows = column(-1, 1, -1, 1, 0, 0, -1, 1, 0.5, 0)
    rounds = np.repeat(rows[None], 40, axis=0)
    rounds[[2, 3, 35], 9] = 60.0
    seen = [told(rounds[: t + 1])[1].since[9] for t in range(40)]
    assert seen[:2] == [-1, -1]
    assert seen[2:6] == [2] * 4
    assert seen[34] == -1
    assert seen[35:] == [35] * 5
    assert np.all(told(rounds)[1].since[:9] == -1)


def test_while_it_is_away_its_streak_stays():
    rounds = np.repeat(column(0, 1, 2, 3, 34)[None], 3, axis=0)
    answers = np.ones((3, 5), bool)
    answers[1:, 4] = False
    assert told(rounds, usable=answers)[1].since.tolist() == [-1, -1, -1, -1, 0]


def test_a_client_drawn_twice_is_remembered_once():
    """Both of its reports are the same one: they are weighed alike, and its mean moves as for one."""
    rows = column(0, 1, 2, 3, 34, 34)
    shares, memory = told([rows, rows], who=[[0, 1, 2, 3, 4, 4]] * 2, clients=5)
    assert shares[1, 4] == shares[1, 5]
    assert memory.mean[4] == pytest.approx(31.5)  # from the median of six rows, 2.5
    assert memory.round == 2


@pytest.mark.parametrize("together", [True, False])
def test_two_of_five_that_take_part_are_known_although_they_are_two_of_ten(together):
    """Five of ten are drawn. In rounds in which both hostile ones are, two of five are far, more than a fifth; the
    distances of all ten clients tell them from the others. Without a memory the aggregate would move by 20."""
    rng = np.random.default_rng(0)
    rule, memory = ReweightedMean(), no_distances(10)
    rounds = [rng.permutation(10)[:5] for _ in range(30)]
    rounds += [np.array([8, 9, *rng.permutation(8)[:3]] if together else [9, *rng.permutation(8)[:4]])]
    step = jax.jit(rule.weigh)
    for who in rounds:
        rows = rng.normal(size=(5, 3)).astype(np.float32)
        rows[who >= 8] += 50.0
        ones, yes = np.full(5, 0.2, np.float32), np.ones(5, bool)
        left, memory = step(memory, rows, ones, yes, np.zeros(3, np.float32), who.astype(np.int32))
    moved = np.asarray(left) @ rows / np.asarray(left).sum()
    honest = rows[who < 8].mean(0)
    assert np.linalg.norm(moved - honest) < 3.0  # two of five at the edge of the reach, twice an honest distance


@pytest.mark.parametrize("away", [3.0, 10.0, 100.0, 1e4, 1e14])
@pytest.mark.parametrize("rule", [ReweightedMean(), History()])
def test_one_of_ten_moves_the_aggregate_by_a_tenth_of_the_reach_at_most(rule, away):
    """However far it goes, for however long; the mean moves by a tenth of that."""
    rounds = normal(30).astype(np.float32)
    memory, step = rule.open(10, 3), jax.jit(rule.weigh)
    ones, yes, zero = np.full(10, 0.1, np.float32), np.ones(10, bool), np.zeros(3, np.float32)
    for rows in rounds:
        honest = rows[1:].mean(0)
        rows = rows.copy()
        rows[0] = away
        left, memory = step(memory, rows, ones, yes, zero, np.arange(10, dtype=np.int32))
        left = np.asarray(left)
        moved = np.linalg.norm(left @ rows / left.sum() - honest)
        reach = 2 * np.sort(np.linalg.norm(rows[1:], axis=1))[-1]
        assert moved < 0.1 * reach + 0.5  # the median and the missing row shift it by some tenths


# -- in a method


class Plain(Method):
    aggregate = TWICE


def averaged(reports, combined, rounds=1):
    """The weights that ``Averaging`` leaves after some equal rounds, and its memory."""
    averaging, count = Averaging(TWICE), len(reports["theta"])
    view = SimpleNamespace(client_count=count, client_ids=jnp.arange(count))
    theta = jnp.zeros(reports["theta"].shape[1:])
    memory = averaging.open_for(view, theta, combined)
    for _ in range(rounds):
        weights, memory = averaging.weigh(view, memory, reports, jnp.ones(count), jnp.ones(count, bool), theta)
    return np.asarray(weights), memory


def test_an_entry_that_is_combined_costs_its_sender_everywhere():
    """One is far in its model and another in its control variate: both count less, in all that is combined."""
    reports = {"theta": jnp.asarray(column(0, 1, 2, 3, 34)), "control": jnp.asarray(column(-32, 1, 2, 3, 2))}
    weights, memory = averaged(reports, ["control"])
    assert set(memory) == {"theta", "control"}
    assert weights[0] < 0.01
    assert weights[4] < 0.02
    np.testing.assert_array_equal(weights[1:4], 1.0)


def test_an_entry_that_no_part_names_is_combined_under_the_rule_all_the_same():
    """It is not remembered, but what is combined of it is the reweighted mean of this round."""
    reports = {"theta": jnp.asarray(column(0, 1, 2, 3, 2)), "other": jnp.asarray(column(0, 1, 2, 3, 34))}
    weights, memory = averaged(reports, [])
    assert set(memory) == {"theta"}
    np.testing.assert_array_equal(weights, 1.0)
    got = TWICE.aggregate_models(reports["other"], weights, np.ones(5, bool), np.zeros(1))
    np.testing.assert_allclose(got, [(6 + 34 / 64) / (4 + 1 / 64)], rtol=1e-6)


def test_a_method_of_ones_own_weighs_once():
    """What the memory has weighed is not compared once more by the distances of the round."""
    method = Plain()
    view = SimpleNamespace(client_count=5, client_ids=jnp.arange(5))
    theta, reports = jnp.zeros(1), {"theta": jnp.asarray(column(0, 1, 2, 3, 34))}
    arguments = theta, reports, jnp.full(5, 0.2), jnp.ones(5, bool), jax.random.key(0)
    model, memory, _ = method.combine(view, method.open(view, theta), *arguments)
    np.testing.assert_allclose(model, [(6 + 34 / 64) / (4 + 1 / 64)], rtol=1e-6)
    assert int(memory.round) == 1


def test_of_entries_history_compares_distances_alone():
    assert History(0.3).of_entries == ReweightedMean(0.3, 1.5)
    assert ReweightedMean(0.3).of_entries == ReweightedMean(0.3)


def test_the_state_keeps_its_shapes_and_compiles_once():
    told(normal(2))
    before = weigh.func._cache_size()
    told(normal(3, seed=1))
    assert weigh.func._cache_size() == before
    like = jax.eval_shape(partial(weigh_rows, hostile=0.2), no_distances(10), *_shapes())[1]
    assert jax.tree.map(jnp.shape, like) == jax.tree.map(jnp.shape, no_distances(10))


def _shapes():
    rows, one = jax.ShapeDtypeStruct((10, 3), jnp.float32), jax.ShapeDtypeStruct((10,), jnp.float32)
    return rows, one, jax.ShapeDtypeStruct((10,), bool), jax.ShapeDtypeStruct((10,), jnp.int32)
