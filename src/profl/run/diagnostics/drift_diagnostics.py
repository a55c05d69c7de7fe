"""The world behind a client: memory, drift, and a spread that moves (``profl.run.probes``)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from profl.parts.variance_shift import log_spread
from profl.problem.families import Family
from profl.run import probes
from profl.run.diagnostics.family import estimate_and_noise
from profl.run.diagnostics.finding import Finding
from profl.run.diagnostics.subject import Deploy, Subject
from profl.run.live import batches
from profl.typing import Array, Batch

LEAST_HOLD = 3  # two deployments under a model say nothing of what is left of the one before
ASIDE = 0.4  # of a natural unit: how far the two models that are held lie from theta, on both sides
HOLD = 8  # deployments that each of two models is held for, where memory is looked for


def world(subject: Subject, deploy: Deploy, hold: int, first: int) -> Iterator[Finding]:
    """Two models, held in turn: what moves while one is held, and what differs between them."""
    two, family = subject.around(1, ASIDE), subject.world.family
    estimates, noise, spreads = [], [], []
    for number, which in enumerate(probes.schedule(hold).astype(int)):
        came = deploy(two[which], first + number)
        f, resampled = estimate_and_noise(subject.world, came)
        estimates.append(f)
        noise.append(resampled)
        if family.shift is not None:
            spreads.append(np.asarray(_log_spread(family, came, f), float))
    found = probes.look(np.stack(estimates), np.concatenate(noise), hold)
    yield _memory(found, hold)
    yield _drift(found, hold)
    if family.shift is not None:
        yield _spread(family, probes.compare(np.stack(spreads), found.rate, hold))


def _memory(found: probes.World, hold: int) -> Finding:
    if not found.memory:
        seen = "the two models bring in too much the same to tell: take more samples"
        if found.fastest:
            seen = f"a rate of {found.fastest:.2g} or slower would be"
        return Finding("memory", "ok", f"none to be seen where a model is held for {hold} deployments; {seen}")
    settling = round(1 / found.rate)
    return Finding(
        "memory",
        "warn",
        f"people react slowly, {found.rate:.2g} of the way with a deployment ({found.low:.2g} to {found.high:.2g}): "
        f"train with jacobian='tracking', and judge a model only after {settling} deployments and more",
    )


def _drift(found: probes.World, hold: int) -> Finding:
    if not found.drift:
        least = f"; a trend below {found.visible:.2g} standard deviations of f_hat a deployment would not be"
        return Finding("drift", "ok", f"none to be seen in {3 * hold} deployments{least}")
    most = found.trend[np.argmax(np.abs(found.trend))]
    return Finding(
        "drift",
        "warn",
        f"the data move by themselves, by up to {most:.2g} a deployment: "
        "train with jacobian='tracking', which follows them, and go on deploying",
    )


def _spread(family: Family, found: probes.Spread) -> Finding:
    size = f"{100 * (found.ratio - 1):+.2g} ± {100 * found.error * found.ratio:.1g} %"
    if not found.moves:
        return Finding("spread", "ok", f"the same under models {2 * ASIDE:g} natural units apart: {size}")
    return Finding(
        "spread",
        "warn",
        f"a standard deviation differs by {size} between models {2 * ASIDE:g} natural units apart, and "
        f"{type(family).__name__} takes it for fixed: use profl.LocationScale(), or Problem(push=...)",
    )


@partial(jax.jit, static_argnums=0)
def _log_spread(family: Family, batch: Batch, f: Array) -> Array:
    n = batches.rows(batch)
    return log_spread(family, batch, jnp.full(n, 1 / n), f)
