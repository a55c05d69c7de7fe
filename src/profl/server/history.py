"""The memory of the rule ``history``, which counts clients by whether their noise is their own; not in the paper.

Clients differ permanently, so the position of a report says little about its sender. But honest clients have data of
their own: once a client's systematic part is subtracted from its moves, the rest is noise, and the noise of two honest
clients is uncorrelated. A report that is copied from another, or computed from the others', has correlated noise.

    y_i(t) = S (theta_i - theta_sent)                  a move of client i in a few numbers (S: a sketch)
    e_i(t) = y_i(t) - (a_i + B_i S theta_sent(t))      minus its systematic part: a_i and B_i by least squares
    C_ij   = correlation of e_i and e_j over the rounds in which both took part

* Copies: rows with C_ij near 1 share one vote, such as ``mimic``'s and all that hostile clients send alike.
* Computed from others: A_i = sum_j C_ij^2, over others with one vote each, is the share of e_i that these explain. It
  is 0 for independent noise and 1 for a mean of others, of which each explains little. ``drift`` and ``ipm`` lose
  their votes.
Both must stand out from what is usual in the round, so that nobody is suspect where all have something in
common: a model that still moves far, a mailed Jacobian. They are not applied to a client with few reports.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl.numerics import exact_quantile
from profl.server.distances import honest_counts
from profl.typing import Array

ROUNDS_STORED = 32  # rounds in the memory
SKETCH_WIDTH = 6  # numbers that a move is reduced to
MOST_ROWS_COMPARED = 4096  # rows of a round; where there are more, noise is not compared
ROWS_SAMPLED = 64  # rows from which the usual correlation is estimated
COPY_CORRELATION = 0.8  # of two rows whose noise is the same: added noise of half its deviation leaves as much
EXPLAINED_SHARE = 0.5  # share of a row's noise that others explain, above which it is computed from them
STANDARD_ERRORS = 4.0  # by which a correlation or an explained share must exceed chance
LEAST_NOISE_SHARE = 1e-4  # of a move: a smaller residual is rounding
NORMAL_MAD = 1.4826  # standard deviation of a normal over the median distance from its median


class ReportHistory(NamedTuple):
    """The moves of all clients in the last rounds, one slot per round."""

    round: Array  # () int32
    moves: Array  # (clients, ROUNDS_STORED, width), zero where there was no report
    present: Array  # (clients, ROUNDS_STORED) bool: whether there was a usable report
    sent: Array  # (ROUNDS_STORED, width): the models that were sent


def empty_history(clients: int, size: int) -> ReportHistory:
    """A history without rounds, for ``clients`` with moves of ``size`` numbers."""
    width = min(size, SKETCH_WIDTH)
    moves, present = jnp.zeros((clients, ROUNDS_STORED, width)), jnp.zeros((clients, ROUNDS_STORED), bool)
    return ReportHistory(jnp.int32(0), moves, present, jnp.zeros((ROUNDS_STORED, width)))


def add_round(memory: ReportHistory, moves: Array, usable: Array, centre: Array, client_ids: Array) -> ReportHistory:
    """The history with this round in place of the oldest; a client that was sampled twice is entered once."""
    slot, width = memory.round % ROUNDS_STORED, memory.sent.shape[1]
    moves = jnp.where(usable[:, None], moves, 0.0)
    new = jnp.zeros_like(memory.moves[:, 0]).at[client_ids].set(sketch(moves, width).astype(memory.moves.dtype))
    present = jnp.zeros_like(memory.present[:, 0]).at[client_ids].max(usable)
    return ReportHistory(
        memory.round + 1,
        memory.moves.at[:, slot].set(new),
        memory.present.at[:, slot].set(present),
        memory.sent.at[slot].set(sketch(centre[None], width)[0].astype(memory.sent.dtype)),
    )


def compare_noise(
    memory: ReportHistory, weights: Array, usable: Array, client_ids: Array, hostile: float
) -> tuple[Array, Array]:
    """The share of its weight that every row has once copies share one vote, (k,), and which rows are computed from
    others, (k,) bool."""
    if len(client_ids) > MOST_ROWS_COMPARED:
        return jnp.ones_like(weights), jnp.zeros_like(usable)
    correlation, error = correlations(memory, client_ids)
    others = usable[:, None] & usable & (client_ids[:, None] != client_ids)  # one sampled twice is no copy of itself
    correlation, error = jnp.where(others, correlation, 0.0), jnp.where(others, error, 1.0)
    sampled = slice(None, None, -(-len(client_ids) // ROWS_SAMPLED))
    usual, spread = _median_and_deviation(correlation[sampled, sampled], others[sampled, sampled])
    excess_needed = STANDARD_ERRORS * jnp.maximum(error, spread)
    copies = others & (correlation > COPY_CORRELATION) & (correlation - usual > excess_needed)
    own = jnp.where(usable, weights, 0.0)
    shares = own / jnp.maximum(own + copies @ own, jnp.finfo(own.dtype).tiny)
    votes = jnp.where(others & ~copies, shares, 0.0)
    explained = jnp.sum(votes * (correlation**2 - error**2), axis=1)
    usual, spread = _median_and_deviation(explained, usable)
    explained_error = jnp.sqrt(2 * jnp.sum(votes * error**4, axis=1))
    excess_needed = jnp.maximum(EXPLAINED_SHARE, STANDARD_ERRORS * jnp.maximum(explained_error, spread))
    computed = usable & (explained - usual > excess_needed)
    return shares, highest_scores(explained, computed, usable, hostile)


def sketch(rows: Array, width: int) -> Array:
    """Rows (k, m) in ``width`` numbers each: sums of every width-th entry with random signs; unchanged for small m."""
    k, m = rows.shape
    if m <= width:
        return rows
    signs = jax.random.rademacher(jax.random.key(0), (m,), rows.dtype)
    return jnp.pad(rows * signs, ((0, 0), (0, -m % width))).reshape(k, -1, width).sum(1)


def correlations(memory: ReportHistory, client_ids: Array) -> tuple[Array, Array]:
    """C (k, k) of the rows' noise, and its standard error for independent noise; 0 and 1 where nothing is known."""
    present = memory.present[client_ids]
    noise = regression_residuals(memory.moves[client_ids], present, memory.sent)
    size = jnp.sqrt(jnp.mean(noise**2, axis=(0, 1)))
    noise = noise / jnp.maximum(size, jnp.finfo(size.dtype).tiny)
    fitted = jnp.minimum((1 + memory.sent.shape[1]) / jnp.maximum(jnp.sum(present, axis=1), 1), 1.0)
    flat, counts = noise.reshape(len(client_ids), -1), present.astype(noise.dtype)
    product = jnp.matmul(flat, flat.T, precision="highest")
    square = jnp.matmul(jnp.sum(noise**2, axis=2), counts.T, precision="highest")
    freedom = (counts @ counts.T) * noise.shape[2] * jnp.sqrt((1 - fitted)[:, None] * (1 - fitted))
    known = (square > 0) & (square.T > 0) & (freedom > 1)
    correlation = jnp.where(known, product / jnp.sqrt(jnp.where(known, square * square.T, 1.0)), 0.0)
    return correlation, jnp.where(known, 1 / jnp.sqrt(jnp.maximum(freedom, 1.0)), 1.0)


def regression_residuals(moves: Array, present: Array, sent: Array) -> Array:
    """The moves (clients, rounds, width) minus their least-squares fit by an affine function of the model sent.

    Regressors are made orthogonal one after the other, over the rounds in which a client was ``present``.
    """
    counts = present.astype(moves.dtype)
    basis: list[Array] = []
    for column in [jnp.ones_like(sent[:, 0]), *(sent - jnp.mean(sent, axis=0)).T]:
        new = regressor = counts * column
        for old in basis * 2:  # twice is enough for single precision
            new = new - old * jnp.sum(old * new, axis=1, keepdims=True)
        length, before = (jnp.linalg.norm(each, axis=1, keepdims=True) for each in (new, regressor))
        basis.append(jnp.where(length > LEAST_NOISE_SHARE * before, new / jnp.where(length > 0, length, 1.0), 0.0))
    residuals = moves
    for old in basis:
        residuals = residuals - old[:, :, None] * jnp.sum(old[:, :, None] * residuals, axis=1, keepdims=True)
    noise, size = (jnp.sqrt(jnp.sum(each**2, axis=(1, 2))) for each in (residuals, moves))
    return jnp.where((noise > LEAST_NOISE_SHARE * size)[:, None, None], residuals * counts[:, :, None], 0.0)


def honest_count(hostile: float, usable: Array) -> Array:
    """n - f, () int32, at least 1, for n usable rows; from a table in double precision."""
    return jnp.asarray(honest_counts(hostile, len(usable), np.ceil))[jnp.sum(usable)]


def highest_scores(scores: Array, suspect: Array, usable: Array, hostile: float) -> Array:
    """Which of the suspect are among the f with the highest scores, (k,) bool; f = ceil(hostile n).

    >>> highest_scores(jnp.array([1.0, 9.0, 5.0, 7.0]), jnp.array([True, False, True, True]), jnp.ones(4, bool), 0.25)
    Array([False, False, False,  True], dtype=bool)
    """
    order = jnp.argsort(jnp.argsort(jnp.where(suspect, -scores, jnp.inf)))
    return suspect & (order < jnp.sum(usable) - honest_count(hostile, usable))


def _median_and_deviation(values: Array, usable: Array) -> tuple[Array, Array]:
    """The median of the usable values, and their standard deviation from the median distance to it."""
    values, share = values.reshape(-1, 1), usable.reshape(-1).astype(values.dtype)
    median = exact_quantile(values, share)
    return median[0], NORMAL_MAD * exact_quantile(jnp.abs(values - median), share)[0]
