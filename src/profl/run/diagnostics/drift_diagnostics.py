"""Memory, drift, and a variance that moves with the model, at one client (``profl.run.probes``)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from profl import trees
from profl.problem.families import FLAT, Family, average
from profl.run import probes
from profl.run.diagnostics.family import estimate_and_noise
from profl.run.diagnostics.subject import Deploy, Finding, Subject
from profl.run.live import batches
from profl.typing import Array, Batch

MIN_HOLD = 3  # two deployments under a model say nothing of what is left of the one before
ASIDE = 0.4  # of a natural unit: how far the two models that are held lie from theta, on both sides
HOLD = 8  # deployments that each of two models is held for, where memory is looked for


def drift_findings(subject: Subject, deploy: Deploy, hold: int, first: int) -> Iterator[Finding]:
    """Findings from two models, held in turn: what moves while one is held, and what differs between them."""
    models, family = subject.around(1, ASIDE), subject.world.family
    estimates, noise, variances = [], [], []
    for number, which in enumerate(probes.deployment_schedule(hold).astype(int)):
        batch = deploy(models[which], first + number)
        f, resampled = estimate_and_noise(subject.world.family, batch)
        estimates.append(f)
        noise.append(resampled)
        if family.shift is not None:
            variances.append(np.asarray(log_variances(family, batch, f), float))
    result = probes.estimate_dynamics(np.stack(estimates), np.concatenate(noise), hold)
    yield _memory(result, hold)
    yield _drift(result, hold)
    if family.shift is not None:
        yield _spread(family, probes.compare_variances(np.stack(variances), result.rate, hold))


def _memory(result: probes.ReactionDynamics, hold: int) -> Finding:
    """Whether the population reacts slowly."""
    if not result.memory:
        limit = "the two models bring in too much the same to tell: take more samples"
        if result.fastest:
            limit = f"a rate of {result.fastest:.2g} or slower would be"
        return Finding("memory", "ok", f"none to be seen where a model is held for {hold} deployments; {limit}")
    settling = round(1 / result.rate)
    return Finding(
        "memory",
        "warn",
        f"people react slowly, {result.rate:.2g} of the way with a deployment ({result.low:.2g} to {result.high:.2g}): "
        f"train with jacobian='tracking', and judge a model only after {settling} deployments and more",
    )


def _drift(result: probes.ReactionDynamics, hold: int) -> Finding:
    """Whether the data move with time."""
    if not result.drift:
        least = f"; a trend below {result.visible:.2g} standard deviations of f_hat a deployment would not be"
        return Finding("drift", "ok", f"none to be seen in {3 * hold} deployments{least}")
    most = result.trend[np.argmax(np.abs(result.trend))]
    return Finding(
        "drift",
        "warn",
        f"the data move by themselves, by up to {most:.2g} a deployment: "
        "train with jacobian='tracking', which follows them, and go on deploying",
    )


def _spread(family: Family, result: probes.VarianceChange) -> Finding:
    """Whether the variance of the data depends on the model."""
    size = f"{100 * (result.ratio - 1):+.2g} ± {100 * result.error * result.ratio:.1g} %"
    if not result.moves:
        return Finding("spread", "ok", f"the same under models {2 * ASIDE:g} natural units apart: {size}")
    return Finding(
        "spread",
        "warn",
        f"a standard deviation differs by {size} between models {2 * ASIDE:g} natural units apart, and "
        f"{type(family).__name__} takes it for fixed: use profl.LocationScale(), or Problem(push=...)",
    )


@partial(jax.jit, static_argnums=0)
def log_variances(family: Family, batch: Batch, f: Array) -> Array:
    """The logarithm of the variance of every coordinate that the family's ``shift`` moves, shape (m,).

    Samples are first brought to f = 0. Where the family is right, their variance is then the same for every model.

    >>> from profl.problem.families import GaussianMean
    >>> log_variances(GaussianMean(), jnp.array([[1.0, 0.0], [3.0, 0.2]]), jnp.array([2.0, 0.1])).round(3)
    Array([ 0.   , -4.605], dtype=float32)
    """
    n = batches.rows(batch)
    centred = jax.tree.leaves(jax.vmap(family.apply_shift, (0, None, None))(batch, -f, f))
    before = jax.tree.leaves(batch)
    return jnp.concatenate(
        [_log_variance(centred[i], before[i], jnp.full(n, 1 / n)) for i in _moved_leaves(family, batch, f)]
    )


def _log_variance(centred: Array, before: Array, weights: Array) -> Array:
    """The log variance of the entries of a leaf, shape (entries,), bounded below by rounding errors."""
    least = (FLAT * jnp.finfo(centred.dtype).eps * before[0]) ** 2 + jnp.finfo(centred.dtype).tiny
    return jnp.log(jnp.maximum(average(weights, centred**2), least)).ravel()


def _moved_leaves(family: Family, batch: Batch, f: Array) -> list[int]:
    """The indices of the leaves of a sample that the family's ``shift`` changes."""
    z, f = jax.eval_shape(lambda batch, f: (trees.take(batch, 0), f), batch, f)
    jaxpr = jax.make_jaxpr(family.apply_shift)(z, f, f).jaxpr
    changed = [i for i, leaf in enumerate(jaxpr.outvars) if leaf not in jaxpr.invars]
    return [i for i in changed if jnp.issubdtype(jaxpr.outvars[i].aval.dtype, jnp.floating)]
