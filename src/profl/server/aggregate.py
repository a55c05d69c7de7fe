"""What the server does with the reports of a round (paper, Algorithm 1, lines 18-21): refuse, combine, share."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from profl import trees
from profl.server.attacks import Report
from profl.server.clusters import Clusters
from profl.server.rules import Rule, WeightedMean
from profl.typing import Array, Key, Theta

ABSURD = 1e4  # times the median move of a round's reports


class Answer(NamedTuple):
    """What comes out of a round."""

    theta: Theta
    accepted: Array  # (k,) bool
    shared: Array | None = None  # (k, p, s): the Jacobian that each client is to use
    groups: Array | None = None  # (k,) the cluster of each client, -1 for none


def receive(
    rule: Rule, clusters: Clusters | None, key: Key, reports: Report, weights: Array, accepted: Array, sent: Theta
) -> Answer:
    """Refuse what cannot be used, combine the rest, and share Jacobians; ``accepted`` says who was sound at all."""
    accepted = accepted & accept(reports, sent)
    theta = combine(rule, reports.theta, weights, accepted, sent)
    if clusters is None or reports.jacobian is None:
        return Answer(theta, accepted)
    return Answer(theta, accepted, *clusters.share(key, reports.jacobian, weights, accepted, reports.jacobian_error))


def accept(reports: Report, sent: Theta) -> Array:
    """Which reports may be used: all numbers finite, and no move that is absurd beside the others'. (k,) bool.

    >>> accept(Report(jnp.array([[1.0], [1.1], [1e9], [jnp.inf]]), jnp.zeros(4)), jnp.zeros(1))
    Array([ True,  True, False, False], dtype=bool)
    """
    finite = jax.vmap(trees.all_finite)(reports._replace(jacobian_error=None))  # that may be unknown
    moves = jax.vmap(lambda own: trees.norm(jax.tree.map(jnp.subtract, own, sent)))(reports.theta)
    usual = jnp.nanmedian(jnp.where(finite, moves, jnp.nan))
    return finite & ((moves <= ABSURD * usual) | (usual == 0))


def combine(rule: Rule, models: Theta, weights: Array, accepted: Array, centre: Theta) -> Theta:
    """The accepted models under an aggregation rule; ``centre`` is the model they started from."""
    if isinstance(rule, WeightedMean):
        return weighted_mean(models, weights, accepted)
    flat, unravel = ravel_pytree(centre)
    return unravel(rule(jax.vmap(trees.ravel)(models), weights, accepted, flat))


def weighted_mean(models: Theta, weights: Array, accepted: Array) -> Theta:
    """sum_i w_i theta_i over the accepted reports, w renormalised over them; NaN where nobody is left.

    >>> models = jnp.array([[1.0], [3.0], [jnp.nan]])
    >>> weighted_mean(models, jnp.array([0.25, 0.25, 0.5]), jnp.array([True, True, False]))
    Array([2.], dtype=float32)
    """
    share = jnp.where(accepted, weights, 0.0)
    share = share / jnp.sum(share)

    def average(leaf: Array) -> Array:
        safe = jnp.where(accepted.reshape(-1, *(1,) * (leaf.ndim - 1)), leaf, 0.0)
        return jnp.tensordot(share.astype(leaf.dtype), safe, axes=1)

    return jax.tree.map(average, models)
