"""Robust aggregation: worked numbers, symmetries, hostile rows, and what robustness costs where all are honest."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path

import jax
import numpy as np
import pytest

from profl.checks import InputError
from profl.server import rules
from profl.server.attacks import InnerProduct
from profl.server.rules import (
    CentredClipping,
    GeometricMedian,
    History,
    Krum,
    Median,
    NearestNeighbourMixing,
    ReweightedMean,
    TrimmedMean,
    WeightedMean,
)

PLAIN = list(rules.RULES)
MIXED = [rules.MIX + name for name, rule in rules.RULES.items() if not rule.has_memory]
ALL = [*PLAIN, *MIXED]
ROBUST = [name for name in ALL if name not in ("mean", "nnm+mean")]
WEIGHTED = ["mean", "median", "trimmed_mean", "geometric_median", "centred_clipping"]

every_rule = pytest.mark.parametrize("name", ALL)
each_rule = pytest.mark.parametrize("name", [*PLAIN, "nnm+trimmed_mean", "nnm+krum"])


ROOM, WIDTH = 24, 5  # rows and coordinates
call = jax.jit(lambda rule, *arguments: rule(*arguments), static_argnums=0)


def apply(rule, rows, weights=None, accepted=None, centre=None):
    """A rule on plain lists, with equal weights, everybody accepted and a previous value of zero where not said.

    Rejected rows of NaN fill up to ``ROOM``, and coordinates in which all are zero up to ``WIDTH``, which must change
    nothing: one program for every number of rows.
    """
    rows = np.asarray(rows, np.float32)
    k, m = rows.shape
    weights = np.ones(k, np.float32) if weights is None else np.asarray(weights, np.float32)
    accepted = np.ones(k, bool) if accepted is None else np.asarray(accepted)
    centre = np.zeros(m, np.float32) if centre is None else np.asarray(centre, np.float32)
    more, wider = max(0, ROOM - k), max(0, WIDTH - m)
    rows, centre = np.pad(rows, ((0, 0), (0, wider))), np.pad(centre, (0, wider))
    rows = np.concatenate([rows, np.full((more, m + wider), np.nan, np.float32)])
    weights, accepted = np.append(weights, np.ones(more, np.float32)), np.append(accepted, np.zeros(more, bool))
    return np.asarray(call(rules.get(rule), rows, weights, accepted, centre))[:m]


def draw(seed, k=11, m=3):
    """(rows, weights, accepted, centre): normal rows, unequal weights, two rejected rows that hold NaN and Inf."""
    rng = np.random.default_rng(seed)
    rows, accepted = rng.normal(size=(k, m)), np.ones(k, bool)
    accepted[[2, k - 1]] = False
    rows[2], rows[k - 1] = np.nan, np.inf
    return rows, rng.uniform(0.5, 2.0, k), accepted, rng.normal(size=m)


def column(*values):
    return [[value] for value in values]


WORKED = {
    "mean": (WeightedMean(), column(1, 5), {"weights": [3, 1]}, [2]),
    "median of four": (Median(), column(1, 9, 2, 4), {}, [3]),
    "median, half of the weight": (Median(), column(10, 1, 2), {"weights": [0.5, 0.2, 0.3]}, [6]),
    "median, heavy row": (Median(), column(10, 1, 2), {"weights": [0.6, 0.2, 0.2]}, [10]),
    "trimmed, whole rows": (TrimmedMean(0.2), column(3, 0, 2, 1, 100), {}, [2]),
    "trimmed, parts of rows": (TrimmedMean(0.3), column(9, 0, 2, 1, 100), {}, [3.5]),
    "trimmed, nothing": (TrimmedMean(0.0), column(9, 0, 3), {}, [4]),
    "trimmed, almost all": (TrimmedMean(0.49999), column(9, 0, 3), {}, [3]),
    "geometric median": (GeometricMedian(), [[0, 0], [6, 6], [1, 5], [2.5, 0.5]], {}, [2, 2]),
    "krum": (Krum(0.2), column(0, 1, 3, 7, 100), {}, [1]),
    "krum, tie": (Krum(0.4), column(0, 1, 3, 7, 100), {}, [0.5]),
    "multi-krum": (Krum(0.2, "multi"), column(0, 1, 3, 7, 100), {}, [2.75]),
    "multi-krum, weights": (Krum(0.4, "multi"), column(0, 1, 3, 7, 100), {"weights": [1, 1, 2, 1, 1]}, [1.75]),
    "clipping, fixed": (CentredClipping(4.0, 2), column(2, 10), {}, [4.5]),
    "clipping, own radius": (CentredClipping(None, 2), column(0, 0, 0, 0, 1e6), {"centre": [1]}, [0.16]),
    "clipping, five steps": (CentredClipping(), column(0, 0, 0, 0, 1e6), {"centre": [1]}, [0.4**5]),
    "mixing": (NearestNeighbourMixing(Median(), 0.4), column(0, 1, 3, 7, 100), {}, [4 / 3]),
    "reweighted, evenly spread": (ReweightedMean(0.2, 2.0), column(0, 1, 3, 7, 8), {}, [3.8]),
    "reweighted, apart": (ReweightedMean(0.2, 2.0), column(0, 1, 2, 3, 34), {}, [(6 + 34 / 64) / (4 + 1 / 64)]),
    "reweighted, beyond all": (ReweightedMean(0.2, 2.0), column(0, 1, 2, 3, 1000), {}, [1.5]),
    "reweighted, two groups": (ReweightedMean(0.4, 2.0), column(0, 0, 0, 9, 9.1), {}, [0]),
    "reweighted, weights": (ReweightedMean(0.2, 2.0), column(0, 4, 16), {"weights": [2, 2, 1]}, [4.8]),
    "reweighted, more than f": (
        ReweightedMean(0.2, 2.0),
        column(0, 1, 2, 3, -90, 100),
        {"weights": [2] * 4 + [1, 1]},
        [2.2],
    ),
    "history, apart": (History(0.2, 2.0), column(0, 1, 2, 3, 34), {}, [(6 + 34 / 64) / (4 + 1 / 64)]),
    "mixing, mean": (NearestNeighbourMixing(WeightedMean(), 0.2), column(0, 1, 3, 7, 100), {}, [7.75]),
}


@pytest.mark.parametrize("example", WORKED)
def test_worked_examples(example):
    """Numbers done by hand.

    Median: 10 has half of the weight, so the lower median is 2 and the upper one 10. Trimmed, parts: equal rows weigh
    0.2; without 0.3 at each end 1, 2 and 9 keep 0.1, 0.2 and 0.1: 1.4 / 0.4 = 3.5. Geometric median: the vertices of a
    convex quadrilateral have it where the diagonals cross; the mean is (2.375, 2.875), the median (1.75, 2.75).
    Krum 0.2: f = 1, two nearest others; scores 10, 5, 13, 52, 18058: the row 1, and 0, 1, 3, 7 for multi. Krum 0.4:
    f = 2, one nearest; scores 1, 1, 4, 16, 8649: 0 and 1 tie; multi keeps 0, 1, 3. Clipping, fixed: 0 + (2 + 4)/2 = 3,
    then 3 + (-1 + 4)/2. Own radius: the distance 1 itself, so 1 - 0.8 + 0.2 = 0.4, then 0.4 times that. Mixing 0.4:
    4/3, 4/3, 4/3, 11/3, 110/3. Mixing 0.2: 2.75 four times and 27.75, with mean 7.75. Reweighted, apart: f = 1, the
    median is 2 and four rows lie within 2 of it, so that the reach is 4; 34 is 32 away and keeps (4 / 32)^2 = 1/64 of
    its weight, 1000 is beyond a hundred times the reach. Two groups: three of five rows are at the median, the reach is
    0. Weights: of three rows f = 0 are hostile, it is the mean. More than f: of six rows f = 1, the distances from 1.5
    are 0.5, 0.5, 1.5, 1.5, 91.5 and 98.5, the reach is 183, and it is the mean.
    """
    rule, rows, options, expected = WORKED[example]
    np.testing.assert_allclose(apply(rule, rows, **options), expected, rtol=1e-4)


@each_rule
def test_equal_rows_give_that_row(name):
    _, weights, accepted, centre = draw(0)
    rows = np.where(accepted[:, None], np.array([0.1, -7.3, 1000.0]), np.nan)
    np.testing.assert_allclose(apply(name, rows, weights, accepted, centre), rows[0], rtol=1e-6)


@each_rule
@pytest.mark.parametrize("seed", range(3))
def test_order_does_not_matter(name, seed):
    rows, weights, accepted, centre = draw(seed)
    order = np.random.default_rng(seed).permutation(len(rows))
    expected = apply(name, rows, weights, accepted, centre)
    np.testing.assert_allclose(apply(name, rows[order], weights[order], accepted[order], centre), expected, atol=1e-6)


@each_rule
@pytest.mark.parametrize(
    ("scale", "shift"), [(1.0, [10.0, -3.0, 100.0]), (1.0, [1e4, -1e4, 1e4]), (1e-4, [0, 0, 0]), (-1e5, [7.0, 0, 0])]
)
def test_units_and_origin_do_not_matter(name, scale, shift):
    rows, weights, accepted, centre = draw(1)
    expected = scale * apply(name, rows, weights, accepted, centre) + shift
    got = apply(name, scale * rows + shift, weights, accepted, scale * centre + shift)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * abs(scale))


@each_rule
def test_rejected_and_weightless_rows_are_as_if_absent(name):
    rows, weights, accepted, centre = draw(2)
    expected = apply(name, rows[accepted], weights[accepted], None, centre)
    np.testing.assert_allclose(apply(name, rows, weights, accepted, centre), expected, atol=1e-6)
    weightless = np.where(accepted, weights, 0.0)
    np.testing.assert_allclose(
        apply(name, np.where(accepted[:, None], rows, 5.0), weightless, None, centre), expected, atol=1e-6
    )


@each_rule
def test_nobody_left_gives_nan(name):
    rows, weights, accepted, centre = draw(3)
    assert np.all(np.isnan(apply(name, rows, weights, np.zeros_like(accepted), centre)))
    assert np.all(np.isnan(apply(name, rows, 0 * weights, accepted, centre)))


@each_rule
def test_one_row_and_one_coordinate(name):
    np.testing.assert_allclose(apply(name, [[2.0, -5.0]], centre=[1, 1]), [2.0, -5.0], rtol=1e-6)
    np.testing.assert_allclose(apply(name, [[2.0], [np.nan]], accepted=[True, False]), [2.0], rtol=1e-6)
    got = apply(name, column(1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0), centre=[2.0])
    np.testing.assert_allclose(got, [2.5], atol=0.51 if name == "krum" else 0.2)


ATTACKS = {
    "together": lambda rng, count: np.ones((count, 5)),
    "both sides": lambda rng, count: np.where(np.arange(count) % 2, 1.0, -1.0)[:, None] * np.ones(5),
    "scattered": lambda rng, count: rng.normal(size=(count, 5)),
}


@every_rule
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("far", [1e4, 1e6, 1e37])
def test_a_hostile_fifth_does_not_take_over(name, attack, far):
    """16 honest rows, 4 hostile ones ``far`` away and 3 that hold NaN: every robust rule stays within twice the honest
    spread (root mean square distance from their mean), most within once; the mean is carried off. At 1e37 the squares
    of distances, and products with honest rows, overflow."""
    rng = np.random.default_rng(7)
    honest = 300.0 + 100.0 * rng.normal(size=(16, 5))
    rows = np.concatenate([honest, 300.0 + far * ATTACKS[attack](rng, 4), np.full((3, 5), np.nan)])
    order = rng.permutation(23)
    got = apply(name, rows[order], accepted=np.isfinite(rows[order, 0]), centre=np.full(5, 200.0))
    spread = np.sqrt(np.mean(np.sum((honest - honest.mean(0)) ** 2, axis=1)))
    moved = np.linalg.norm((got - honest.mean(0)) / spread)
    if name in ROBUST:
        assert moved < (2.0 if "krum" in name else 1.0)
    elif attack != "both sides" and far >= 1e6:
        assert moved * spread > far / 1000


COST = {  # root mean square error over that of the mean, alone and after nnm+: 20 honest normal rows in 5 dimensions
    "mean": (1.0, 1.0),
    "median": (1.21, 1.005),
    "trimmed_mean": (1.065, 1.0),
    "geometric_median": (1.055, 1.005),
    "krum": (2.3, 1.085),
    "multi_krum": (1.21, 1.01),
    "centred_clipping": (1.02, 1.0),
    "reweighted_mean": (1.0, None),
    "history": (1.0, None),
}


@functools.cache
def error(rule, k, m=5, trials=1000):
    """Root mean square error of a rule over honest standard normal rows."""
    rows = np.random.default_rng(k).normal(size=(trials, k, m)).astype(np.float32)
    more = max(0, MANY - k)  # rejected: one program for every number of rows
    rows, accepted = np.pad(rows, ((0, 0), (0, more), (0, 0)), constant_values=np.nan), np.arange(k + more) < k
    place = np.ones(k + more, np.float32), accepted, np.full(m, 0.5, np.float32)
    found = [np.asarray(estimate(rule, rows[i : i + 500], *place), float) for i in range(0, trials, 500)]
    return float(np.sqrt(np.mean(np.concatenate(found) ** 2)))


MANY = 60
estimate = jax.jit(
    lambda rule, rows, *place: jax.vmap(lambda each: rule(each, *place))(rows), static_argnums=0
)  # of every trial


@every_rule
def test_what_robustness_costs_where_all_are_honest(name):
    """Three per cent around the recorded figure: using 18 of the 20 rows would already cost five."""
    expected = COST[name.removeprefix(rules.MIX)][name.startswith(rules.MIX)]
    assert error(rules.get(name), 20) / error(WeightedMean(), 20) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(("rule", "theory"), [(Median(), math.sqrt(math.pi / 2)), (TrimmedMean(0.2), 1.0699)])
def test_cost_agrees_with_theory(rule, theory):
    """Asymptotic variances for normal rows: pi/2 for the median; for the trimmed mean, with z = 0.8416 the quantile at
    0.8 and phi(z) = 0.2800, (0.6 - 2 z phi(z) + 0.4 z^2) / 0.6^2 = 1.1447."""
    assert error(rule, 100) / error(WeightedMean(), 100) == pytest.approx(theory, rel=0.02)


@each_rule
def test_more_clients_make_it_better(name):
    """Four times the clients halve the error at least, as they do the mean's; not Krum's, which returns one row."""
    few, many = (error(rules.get(name), k, trials=500) / error(WeightedMean(), k, trials=500) for k in (15, 60))
    assert many / few > 1.3 if name == "krum" else many / few < 1.07


@pytest.mark.parametrize(("more", "expected"), [((), 4.7), ((14, 14), 5.145), ((40, 40), 4.7), ((-30, 40), 4.7)])
def test_mixing_keeps_every_row_unless_some_pull_aside(more, expected):
    """Ten rows have the mean 4.7. Two more at 14 would pull it to 6.25, half of the median distance: they are trimmed.
    Two that lie beyond three median distances are left out, and what is left agrees with its mean."""
    rows = column(0, 1, 2, 3, 4, 5, 6, 7, 8, 11, *more)
    assert apply("nnm+trimmed_mean", rows)[0] == pytest.approx(expected, rel=1e-4)


@each_rule
def test_jit_and_vmap_change_nothing_and_compile_once(name):
    """The number of accepted rows differs from call to call; the shapes, and the compiled program, do not."""
    rule = rules.get(name)
    batch = [draw(seed, ROOM, WIDTH) for seed in range(4)]
    for seed, (_, _, accepted, _) in enumerate(batch):
        accepted[3 : 3 + seed] = False
    stacked = [np.stack(parts) for parts in zip(*batch, strict=True)]
    many, compiled = jax.jit(jax.vmap(rule))(*stacked), call._cache_size()
    many = np.asarray(many)
    for got, arguments in zip(many, zip(*stacked, strict=True), strict=True):
        np.testing.assert_allclose(call(rule, *arguments), got, atol=1e-5)
    assert call._cache_size() <= compiled + 1


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n == "median" else pytest.mark.slow) for n in PLAIN])
def test_a_rule_may_run_uncompiled(name):
    """Every operation of it is a program of its own then: the others are slow."""
    arguments = [np.asarray(part, np.float32) if part.dtype == float else part for part in draw(1)]
    got = rules.get(name)(*map(jax.device_put, arguments))
    np.testing.assert_allclose(got, call(rules.get(name), *arguments), atol=1e-5)


@pytest.mark.parametrize("name", WEIGHTED)
@pytest.mark.parametrize("seed", range(3))
def test_weight_two_is_the_row_twice(name, seed):
    rows, _, accepted, centre = draw(seed)
    weights = np.where(np.arange(len(rows)) < 4, 2.0, 1.0)
    copies = np.repeat(np.arange(len(rows)), weights.astype(int))
    expected = apply(name, rows[copies], None, accepted[copies], centre)
    np.testing.assert_allclose(apply(name, rows, weights, accepted, centre), expected, atol=1e-5)
    assert np.max(np.abs(apply(name, rows, None, accepted, centre) - expected)) > 1e-3


def test_the_geometric_median_is_the_minimum():
    """No small move in any direction makes the sum of weighted distances less."""
    rows, weights, accepted, _ = draw(5)
    best = apply("geometric_median", rows, weights, accepted).astype(np.float64)

    def cost(v):
        return np.sum(weights[accepted] * np.linalg.norm(rows[accepted] - v, axis=1))

    assert all(cost(best + sign * 0.02 * axis) > cost(best) for axis in np.eye(3) for sign in (-1, 1))


ORACLE = json.loads((Path(__file__).parent / "oracles" / "byzfl.json").read_text())["cases"]


@pytest.mark.parametrize("case", [0, *(pytest.param(case, marks=pytest.mark.slow) for case in (1, 2))])
def test_rules_agree_with_byzfl(case):
    """What ByzFL 0.0.11 made of the same rows, a few of which lie to one side; ``oracles/byzfl_rules.py`` wrote it."""
    f, rows, expected, sent = ORACLE[case].values()
    n, share = len(rows), f / len(rows)
    own = {
        "trimmed_mean": TrimmedMean(share),
        "geometric_median": GeometricMedian(500),
        "krum": Krum(share),
        "centred_clipping": CentredClipping(1.5, 3),
    }
    for name, value in expected.items():
        rule = own.get(name.removeprefix(rules.MIX), name.removeprefix(rules.MIX))
        rule = NearestNeighbourMixing(rule, share) if name.startswith(rules.MIX) else rule
        np.testing.assert_allclose(apply(rule, rows), value, atol=2e-3 if "geometric" in name else 1e-5, err_msg=name)
    moves, honest = np.asarray(rows, np.float32), np.arange(n) < n - f
    np.testing.assert_allclose(jax.jit(InnerProduct(1.5).move)(moves, honest), sent["ipm"], atol=1e-5)


@pytest.mark.parametrize("k", [2, 10, 1000, 5000])
def test_rounding_of_many_weights_does_not_shift_the_median(k):
    """0, 1, ..., k - 1 with weights 0.1: their sum up to the middle is a half only up to rounding."""
    rows, weights = np.arange(k, dtype=float)[::-1, None], np.full(k, 0.1)
    assert apply("median", rows, weights) == (k - 1) / 2
    np.testing.assert_allclose(apply("trimmed_mean", rows, weights), (k - 1) / 2, rtol=1e-5)


def test_rounding_of_the_hostile_share_does_not_cost_a_row():
    """0.14 * 50 is above 7 in floating point, yet f is 7: 42 rows at 0 and the one at 1 are kept."""
    rows = np.concatenate([np.zeros(42), [1.0], 100.0 * 2.0 ** np.arange(7)])[:, None]
    np.testing.assert_allclose(apply(Krum(0.14, "multi"), rows), [1 / 43], rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TrimmedMean(0.5), r"share must lie in \[0, 0.5\), got 0.5"),
        (lambda: TrimmedMean("a"), "share must be a finite number, got 'a'"),
        (lambda: Krum(-0.1), r"hostile must lie in \[0, 0.5\), got -0.1"),
        (lambda: Krum(keep=3), r"keep must be 1 \(Krum\) or 'multi' \(multi-Krum\), got 3"),
        (lambda: GeometricMedian(0), "iterations must be a whole number of at least 1, got 0"),
        (lambda: CentredClipping(radius=0.0), "radius must be a finite number above 0, got 0.0"),
        (lambda: CentredClipping(iterations=1.5), "iterations must be a whole number of at least 1, got 1.5"),
        (lambda: NearestNeighbourMixing(Median(), 0.7), r"hostile must lie in \[0, 0.5\), got 0.7"),
        (lambda: NearestNeighbourMixing(Median), r"got the class; try Median\(\)"),
        (lambda: rules.get("medain"), "unknown aggregation rule 'medain'; did you mean 'median'"),
        (lambda: rules.get("nnm+trimed_mean"), r"did you mean 'nnm\+trimmed_mean'"),
        (lambda: rules.get("nnm+history"), r"unknown aggregation rule 'nnm\+history'"),
        (lambda: History(0.5), r"hostile must lie in \[0, 0.5\), got 0.5"),
        (lambda: ReweightedMean(0.5), r"hostile must lie in \[0, 0.5\), got 0.5"),
        (lambda: rules.get("nnm+reweighted_mean"), r"unknown aggregation rule 'nnm\+reweighted_mean'"),
        (lambda: rules.get("history:a third"), r"the share in 'history:a third' must be a number in \[0, 0.5\)"),
        (lambda: rules.get("history:"), r"the share in 'history:' must be a number in \[0, 0.5\)"),
        (lambda: rules.get("krum:0.5"), r"the share in 'krum:0.5' must be a number in \[0, 0.5\)"),
        (lambda: rules.get("krum:nan"), r"the share in 'krum:nan' must be a number in \[0, 0.5\)"),
        (lambda: rules.get("median:0.1"), "median takes no share; these do: trimmed_mean, krum, multi_krum"),
        (lambda: rules.get("histry:0.1"), "unknown aggregation rule 'histry'; did you mean 'history'"),
        (lambda: rules.get("nnm+nnm+mean"), r"unknown aggregation rule 'nnm\+nnm\+mean'"),
        (lambda: rules.get(None), "unknown aggregation rule None; there are: mean, median"),
    ],
)
def test_what_cannot_be_used_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_rules_are_values():
    assert Krum(0.2) == rules.get("krum") != rules.get("multi_krum")
    assert len({Krum(0.1), Krum(0.1), Krum(0.2), Median(), WeightedMean(), rules.get("nnm+median")}) == 5
    assert rules.get("nnm+krum") == NearestNeighbourMixing(Krum(), 0.2)


@pytest.mark.parametrize(
    ("spec", "rule"),
    [
        ("reweighted_mean:0.1", ReweightedMean(0.1)),
        ("history:0.3", History(0.3)),
        ("trimmed_mean:0.1", TrimmedMean(0.1)),
        ("multi_krum:0.3", Krum(0.3, "multi")),
        ("krum:0", Krum(0.0)),
        ("nnm+median:0.3", NearestNeighbourMixing(Median(), 0.3)),
        ("nnm+trimmed_mean:0.3", NearestNeighbourMixing(TrimmedMean(0.3), 0.3)),
    ],
)
def test_a_name_can_state_the_share(spec, rule):
    """Of a mixed rule for both: it withstands the lesser of the two."""
    assert rules.get(spec) == rule


def test_a_function_is_a_rule():
    own = lambda vectors, weights, accepted, centre: centre  # noqa: E731
    assert rules.get(own).function is own
