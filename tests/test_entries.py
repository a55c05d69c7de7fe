"""A report's entries state what they are, and the server goes by that alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import profl
from profl import trees
from profl.methods.method import Method
from profl.parts import privacy as mechanism
from profl.run.config import RunConfig
from profl.run.live import protection
from profl.run.plan import describe, make_plan
from profl.run.run_history import absent_work
from profl.server import entries
from profl.server.gate import LARGEST_SIZE_RATIO, accept

CASE = profl.cases.pricing(clients=4, goods=2)
RUN = RunConfig(rounds=1, local_steps=1, samples=5, seeds=[0])


@dataclass(frozen=True)
class Reporting(Method):
    """Reports what it is told to beside its model."""

    more: Any = ()
    name = "reporting"

    def step(self, problem, state, theta, arrival, key):
        return theta, state, {"loss": jnp.zeros(())}

    def report(self, problem, state, theta):
        return {"theta": entries.model(theta)} | {name: make(jnp.ones(3)) for name, make in self.more}


@dataclass(frozen=True)
class Plain(Reporting):
    what: str = "nothing"

    def report(self, problem, state, theta):
        return {
            "nothing": None,
            "no model": {"fit": entries.statistic(theta)},
            "plain": {"theta": theta},
            "unknown": {"theta": entries.model(theta), "fit": entries.Entry(theta, "fit")},
            "no theta": {"theta": entries.gradient(theta)},
        }[self.what]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("nothing", 'reporting: report must return a dict with an entry "theta", got None'),
        ("no model", 'must return a dict with an entry "theta"'),
        ("plain", r"entry 'theta' of its report must be one of .*model\(\.\.\.\), .*; got ShapeDtypeStruct"),
        ("unknown", r"entry 'fit' of its report must be one of .*; got the kind 'fit'"),
        ("no theta", r'entry "theta" of its report must be model\(\.\.\.\), got gradient\(\.\.\.\)'),
    ],
)
def test_a_report_without_kinds_is_refused_before_any_work(what, message):
    with pytest.raises(profl.InputError, match=message):
        make_plan(CASE, Plain(what=what), RUN)


@pytest.mark.parametrize("kind", entries.KINDS[1:])
def test_the_gate_goes_by_the_kind(kind):
    """Counts and Jacobians are only asked to be finite; other entries are compared with the usual size."""
    rows = np.ones((5, 2), np.float32)
    rows[3:] = [[2 * LARGEST_SIZE_RATIO], [np.nan]]
    report = {"jacobian": entries.Entry(rows, kind), "theta": entries.model(np.zeros((5, 2), np.float32))}
    assert accepted(report).tolist() == [True] * 3 + [kind in ("count", "jacobian"), False]
    single = report | {"jacobian": entries.Entry(rows[:, 0], kind)}
    assert accepted(single).tolist() == [True] * 4 + [False]


@partial(jax.jit, static_argnums=1)
def accepted(report, lies_inside=trees.all_finite):
    """Which reports may be used after a model of zeros."""
    return accept(report, jnp.zeros(2), lies_inside)[0]


def test_every_model_lies_in_the_space():
    other = np.zeros((3, 2), np.float32)
    other[1] = 9.0
    report = {"other": entries.model(other), "theta": entries.model(np.zeros((3, 2), np.float32))}
    assert accepted(report, lambda theta: jnp.all(theta < 5)).tolist() == [True, False, True]


def test_bytes_are_counted_by_entries():
    """Two numbers of a model, and three in each of two other entries, of four bytes."""
    method = Reporting((("a", entries.jacobian), ("b", entries.count)))
    assert describe(make_plan(CASE, method, RUN)).report_bytes == 4 * (2 + 3 + 3)


@pytest.mark.parametrize("kind", ["gradient", "statistic", "count"])
def test_privacy_refuses_other_kinds_whatever_their_name(kind):
    plan = make_plan(CASE, Reporting((("jacobian", lambda value: entries.Entry(value, kind)),)), RUN)
    with pytest.raises(profl.InputError, match="reporting reports jacobian"):
        protection.check_privacy(plan, profl.parts.Privacy(2.0))


def test_privacy_protects_models_and_jacobians_whatever_their_name(monkeypatch):
    """Without noise: all Jacobians are clipped as one, a hundred times too long together; their errors are withheld."""
    monkeypatch.setattr(mechanism, "standard_normals", np.zeros)
    more = (("first", entries.jacobian), ("doubt", entries.jacobian_error), ("second", entries.jacobian))
    plan = make_plan(CASE, Reporting(more), RUN)
    privacy = profl.parts.Privacy(1.0, clip=1.0, clip_jacobian=np.sqrt(6.0) / 100)
    protection.check_privacy(plan, privacy)
    sent, work = np.ones(2, np.float32), absent_work(plan)
    report = Reporting(more).report(None, (), np.array([1.0, 3.0], np.float32))
    noised = protection.protect_report(privacy, plan, sent, work._replace(reports=report), 0, 0).reports
    assert jax.tree.structure(noised) == jax.tree.structure(report)
    np.testing.assert_allclose(noised["theta"].value, [1.0, 2.0], rtol=1e-6)
    for name in ("first", "second"):
        np.testing.assert_allclose(noised[name].value, np.full(3, 0.01), rtol=1e-6)
    np.testing.assert_array_equal(noised["doubt"].value, np.full(3, -1.0))
    assert protection.Account(privacy, plan).share
