"""What clients and the server of ``prm`` send each other: entries of a report, and the mail that comes back.

d is the number of parameters, p the number of entries of f, m - 1 the number of slopes and curvatures of one of them.
Derivatives with respect to theta are in the parameters' own scale; ``RiskFit.units`` has their natural units.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from profl.typing import Array


class RiskFit(NamedTuple):
    """How a client's fitted risk changes near a model, and how well that is known."""

    gradient: Array  # (d,)
    units: Array  # (d,): natural units of the parameters
    curvature: Array  # (d, d)
    own_covariance: Array  # (d, d): of the gradient, from what this client does not know by itself
    shared_covariance: Array  # (d, d): of the gradient, from what no client knows; an error that all of them share

    def to_table(self) -> Array:
        """All of it as the columns of one array, (d, 2 + 3 d), a row per parameter: that is what is sent."""
        gradient, units, *matrices = self
        return jnp.concatenate([jnp.stack([gradient, units], 1), *matrices], 1)

    @classmethod
    def from_table(cls, table: Array) -> RiskFit:
        """What ``to_table`` made."""
        return cls(table[:, 0], table[:, 1], *jnp.split(table[:, 2:], 3, 1))


class RoundCheck(NamedTuple):
    """What the last deployment showed, and numbers of which all clients use the mean; () each."""

    rise: Array  # by how much the observed risk was higher at the model that was tried than at the incumbent
    variance: Array  # of that
    loss_variance: Array  # of the mean loss of the last batch
    perturbation: Array  # the size of its perturbations, in units
    third_order_variance: Array  # of the coefficients that are not fitted, in variances of a sample


class ReactionCoefficients(NamedTuple):
    """What a client knows of the slopes and curvatures of f, (p, m - 1) each."""

    change: Array  # b_i - b: its mean, relative to that of its prior
    known: Array  # share of b_i that comes from the client's own observations
    prior_mean: Array  # b
    prior_variance: Array  # of all clients around b


class CommonReaction(NamedTuple):
    """What all clients together know of the slopes and curvatures of f, (p, m - 1) each."""

    mean: Array  # b
    variance: Array  # of a client's coefficients around it
    error: Array  # variance of the mean itself


class Mail(NamedTuple):
    """What the server sends back to every client; () each, but for ``trial`` and ``common``."""

    accepted: Array  # bool: whether the model that was tried last is the incumbent now
    turn: Array  # int32: the turn of the round that this ends
    trial: Array  # (d,): the model to try next, as a step from the incumbent; zeros before the last turn
    perturbation: Array  # the size of the next perturbation, in units
    held: Array  # share of the parameters that the trust region or the model space holds
    region: Array  # the trust region, in units
    third_order_variance: Array  # mean of the clients'
    common: CommonReaction
    single_client: Array  # bool: whether only one client reported, so that ``common`` says nothing new


def empty_mail(trial: Array, coefficients: Array) -> Mail:
    """Mail of zeros, for a trial (d,) and coefficients (p, m - 1) of these shapes: it states the shapes."""
    zero, no = jnp.zeros(()), jnp.asarray(False)
    common = CommonReaction(*[jnp.zeros_like(coefficients)] * 3)
    return Mail(no, jnp.int32(0), jnp.zeros_like(trial), zero, zero, zero, zero, common, no)
