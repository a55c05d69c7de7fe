"""The variance of one sample's f, pooled over the batches of a client: a batch of one sample shows none."""

from __future__ import annotations

import jax.numpy as jnp

from profl.methods.prm.settings import NO_NOISE
from profl.methods.prm.state import ClientState
from profl.problem.problem import View
from profl.typing import Array, Batch, Theta


def update_noise(
    problem: View, state: ClientState, deployed: Theta, batch: Batch, weights: Array, f: Array
) -> ClientState:
    """The state with the variance of one sample's f, pooled over all batches so far.

    A batch of n samples has n - 1 degrees of freedom. Few samples say little or nothing: with the weight of 1 / n of a
    sample the family's own variance counts in the first batch, and in all others what f missed its prediction by.
    """
    family, share = problem.family, jnp.sum(weights**2)
    observed, declared = (each(batch, weights, f) / share for each in (family.observed_variance, family.variance))
    size = jnp.mean(f**2) + jnp.finfo(f.dtype).tiny
    declared = jnp.where(declared > NO_NOISE * size, declared, size)
    surrogate, first = state.surrogate, state.deployments == 0
    signal = surrogate.signal_unit.standardise(problem.signal(deployed))
    leverage = surrogate.response.variance(signal) / state.sample_variance
    missed = (f - surrogate.response(signal)) ** 2 / (share + leverage)
    dof = jnp.where(first, 0.0, state.noise_dof)
    total = dof * state.sample_variance + observed / share + share * jnp.where(first, declared, missed)
    new_dof = dof + 1 / share - 1 + share
    return state._replace(sample_variance=total / new_dof, noise_dof=new_dof)
