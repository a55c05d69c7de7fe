"""Chains of parts: what is in them, what is left out, and a part of a user's own in all engines."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import profl
from profl import parts
from profl.server import entries
from tests.test_methods import CASE, SMALL, live_engine, over_flower

EXAMPLE = Path(__file__).parent.parent / "examples" / "own_part.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("own_part", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kinds(method, problem=CASE):
    return [type(part).__name__ for part in method.active(problem).values()]


def test_profl_reads_as_algorithm_1():
    assert kinds(profl.profl(share=2)) == [
        "TrustedSamples",
        "EstimatedParameters",
        "NaturalUnits",
        "EstimatedJacobian",
        "Exploration",
        "SharedJacobians",
        "PerformativeGradient",
        "Optimiser",
        "Averaging",
    ]


def test_what_nobody_reads_is_left_out():
    """Least squares works in the problem's own units; a push needs neither f nor a Jacobian, nor exploration."""
    assert "NaturalUnits" not in kinds(profl.pofl(jacobian="least_squares"))
    assert "NaturalUnits" in kinds(profl.pofl(jacobian="least_squares", explore=parts.Exploration()))
    pushed = profl.Problem(
        "pushed",
        lambda theta, z: -jnp.sum(theta * z),
        profl.GaussianMean(),
        lambda key, theta, client, n: 3 - theta + jax.random.normal(key, (n, 1)),
        {"one": np.ones(2)},
        jnp.ones(1),
        push=lambda z, deployed, theta: z - (theta - deployed),
    )
    assert kinds(profl.pofl(), pushed) == ["PerformativeGradient", "Optimiser", "Averaging"]
    assert "EstimatedJacobian" in kinds(profl.pofl(second_term="score"), pushed)


@dataclass(frozen=True)
class Unread(parts.Part):
    """Serves a Jacobian that nobody reads."""

    serves = ("jacobian",)
    info = ("unread",)


def test_what_is_left_out_states_no_number():
    method = profl.chain(Unread(), *profl.pfl().parts, name="unread")
    run = profl.simulate(CASE, method, seeds=[0], **SMALL)
    assert np.isnan(run.info["unread"]).all()
    np.testing.assert_array_equal(run.theta, profl.simulate(CASE, profl.pfl(), seeds=[0], **SMALL).theta)


def test_a_part_of_a_users_own_is_short():
    assert len(EXAMPLE.read_text().splitlines()) <= 60


def test_a_part_of_a_users_own_in_every_engine_with_checkpoints(example, tmp_path):
    method, settings = example.clipped_pfl(0.05, times=0.5), {**SMALL, "participation": 0.75, "min_reports": 1}
    with jax.enable_x64(True):
        fast = profl.simulate(CASE, method, seeds=[3], **settings)
        runs = [profl.simulate(CASE, method, seeds=[3], engine="debug", **settings), live_engine(method, **settings)]
        if find_spec("flwr") is not None:
            runs.append(over_flower(method, **settings))
        for rounds in (2, settings["rounds"]):
            these = {**settings, "rounds": rounds}
            halves = [profl.simulate(CASE, method, seeds=[3], checkpoint=tmp_path / "fast", **these)]
            halves.append(live_engine(method, checkpoint=tmp_path / "live", **these))
        runs += halves
    assert np.nanmean(fast.info["clipped"]) > 0.2  # it does something
    for run in runs:
        np.testing.assert_allclose(run.theta, fast.theta, atol=1e-8)
        np.testing.assert_allclose(run.info["clipped"], fast.info["clipped"], atol=1e-8)


def test_the_usual_length_is_that_of_the_federation(example):
    """Lengths 1, 2 and 30 of three clients: the median, 2, goes to all of them."""
    method = example.clipped_pfl()
    place = method.parts.index(example.ClippedGradient(2.0))
    reports = {"theta": np.zeros((3, 2), np.float32), "gradient_length": np.array([1.0, 2.0, 30.0], np.float32)}
    view = CASE.functions.view()._replace(client_count=3, client_ids=jnp.arange(3))
    args = reports, np.full(3, 1 / 3, np.float32), np.ones(3, bool), jax.random.key(0)
    theta = np.zeros(2, np.float32)
    mail = jax.jit(lambda theta, *args: method.combine(view, method.open(view, theta), theta, *args)[2])(theta, *args)
    np.testing.assert_allclose(mail[place], 2.0)


@dataclass(frozen=True)
class Twin(parts.Part):
    def report(self, view, state, theta):
        return {"theta": entries.model(theta)}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: profl.chain(0.1), "made of profl.parts"),
        (lambda: profl.chain(parts.Averaging(), parts.Averaging()), "one Averaging part, got 2"),
        (lambda: profl.chain(parts.PlainGradient(), parts.Optimiser("auto")), "FoundLearningRate"),
        (lambda: profl.chain(parts.Exploration(), parts.Optimiser()), "estimates none"),
        (lambda: profl.pfl().part(parts.Exploration), "pfl has no Exploration; it has PlainGradient"),
        (lambda: profl.simulate(CASE, profl.chain(parts.Optimiser(), name="idle"), rounds=1), "computes a gradient"),
        (
            lambda: profl.simulate(CASE, profl.chain(parts.PlainGradient(), parts.Optimiser(), Twin()), rounds=1),
            "report an entry 'theta'",
        ),
    ],
)
def test_chains_that_make_no_sense_are_refused(make, message):
    with pytest.raises(profl.InputError, match=message):
        make()
