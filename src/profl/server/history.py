"""What a server remembers of its clients, and whom that lets it believe: those whose noise is their own.

Clients differ for good, so where a report lies says little of who sent it. But honest clients have data of their own:
what is left of a move once the client's habit is taken from it is noise, and the noise of two honest clients has
nothing to do with each other's. A report that is copied from another, or made of the others', has noise that has.

    y_i(t) = S (theta_i - theta_sent)                  a move of client i in a few numbers (S: a sketch)
    e_i(t) = y_i(t) - (a_i + B_i S theta_sent(t))      less its habit: a_i and B_i by least squares over its last moves
    C_ij   = correlation of e_i and e_j over the rounds in which both took part

* Copies: rows with C_ij near 1 have one vote together, as ``mimic``'s and all that hostile clients send alike.
* Made of others: A_i = sum_j C_ij^2, over others with one vote each, is the share of e_i that these explain. It is 0
  where noise is one's own and 1 at a mean of others, of which each explains little. ``drift`` and ``ipm`` have no vote.
* Apart: the mean of y_i less the median of all, over the last ``RECENT`` rounds, in which noise fades and what clients
  do for good stays (momentum). Those far from all others, ``apart``, have no vote: ``f_hat``, ``stale``, ``scaled``.

The first two must stand out from what is usual in the round, so that nobody is suspect where all have something in
common: a model that still moves far, a mailed Jacobian. They are not held against a client that was seldom seen.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl.numerics import exact_quantile
from profl.typing import Array

ROUNDS = 32  # that are remembered
WIDTH = 6  # numbers in which a move is remembered
MOST = 4096  # rows of a round that are compared with each other; where there are more, nobody is
RECENT = 8  # rounds over which noise is to fade
REACH, BEYOND = 4.0, 1.5  # of the distances within which half of the honest rows lie, and all: further is apart
FEW = 64  # rows that show what is usual
ALIKE = 0.8  # correlation of two whose noise is the same: jitter of half its deviation leaves it
EXPLAINED = 0.5  # share of the noise that others explain
SURE = 4.0  # deviations that must lie between chance and both
ROUNDING = 1e-4  # of a move: less is no noise
WHOLE = 1e-9  # 0.14 * 50 is above 7 by less than this: a share of the rows is rounded up only where it passes it


class Memory(NamedTuple):
    """The last rounds, one slot each."""

    round: Array  # () int32
    moves: Array  # (clients, ROUNDS, width), zero where there was none
    seen: Array  # (clients, ROUNDS) bool
    sent: Array  # (ROUNDS, width): the models that were sent


def begin(clients: int, size: int) -> Memory:
    """Nothing remembered of ``clients`` with moves of ``size`` numbers."""
    width = min(size, WIDTH)
    seen = jnp.zeros((clients, ROUNDS), bool)
    return Memory(jnp.int32(0), jnp.zeros((clients, ROUNDS, width)), seen, jnp.zeros((ROUNDS, width)))


def noted(memory: Memory, moves: Array, usable: Array, centre: Array, who: Array) -> Memory:
    """The memory with this round in the slot of the oldest; one that was drawn twice is noted once."""
    slot, width = memory.round % ROUNDS, memory.sent.shape[1]
    moves = jnp.where(usable[:, None], moves, 0.0)
    new = jnp.zeros_like(memory.moves[:, 0]).at[who].set(sketch(moves, width).astype(memory.moves.dtype))
    seen = jnp.zeros_like(memory.seen[:, 0]).at[who].max(usable)
    return Memory(
        memory.round + 1,
        memory.moves.at[:, slot].set(new),
        memory.seen.at[:, slot].set(seen),
        memory.sent.at[slot].set(sketch(centre[None], width)[0].astype(memory.sent.dtype)),
    )


def votes(memory: Memory, weights: Array, usable: Array, who: Array, hostile: float) -> Array:
    """What is left of every row's say, (k,) from 0 to 1; at most f = ceil(hostile n) lose all of it."""
    left, none = jnp.ones_like(weights), jnp.zeros_like(usable)
    if len(who) <= MOST:
        left, none = of_own(memory, weights, usable, who, hostile)
    share = jnp.where(usable & ~none, weights * left, 0.0)
    far = worst(*lasting(memory, share, who, hostile), usable, hostile, jnp.sum(none))
    return jnp.where(none | far, 0.0, left)


def of_own(memory: Memory, weights: Array, usable: Array, who: Array, hostile: float) -> tuple[Array, Array]:
    """Votes as far as copies share them, and who is made of others."""
    found, chance = correlations(memory, who)
    others = usable[:, None] & usable & (who[:, None] != who)  # one that was drawn twice is no copy of itself
    found, chance = jnp.where(others, found, 0.0), jnp.where(others, chance, 1.0)
    few = slice(None, None, -(-len(who) // FEW))
    usual, spread = _middle(found[few, few], others[few, few])
    alike = others & (found > ALIKE) & (found - usual > SURE * jnp.maximum(chance, spread))
    own = jnp.where(usable, weights, 0.0)
    left = own / jnp.maximum(own + alike @ own, jnp.finfo(own.dtype).tiny)
    told = jnp.where(others & ~alike, left, 0.0)
    explained = jnp.sum(told * (found**2 - chance**2), axis=1)
    usual, spread = _middle(explained, usable)
    error = jnp.sqrt(2 * jnp.sum(told * chance**4, axis=1))
    made = usable & (explained - usual > jnp.maximum(EXPLAINED, SURE * jnp.maximum(error, spread)))
    return left, worst(explained, made, usable, hostile)


def lasting(memory: Memory, share: Array, who: Array, hostile: float) -> tuple[Array, Array]:
    """How far each row's client has been from the others of late, and whether that is apart; not if seen rarely."""
    age = (memory.round - 1 - jnp.arange(ROUNDS)) % ROUNDS
    seen = memory.seen & (age < RECENT)
    middle = jnp.nanmedian(jnp.where(seen[:, :, None], memory.moves, jnp.nan), axis=0)
    off, seen = jnp.where(seen[:, :, None], memory.moves - middle, 0.0)[who], seen[who]
    times = jnp.sum(seen, axis=1)
    mean = jnp.sum(off, axis=1) / jnp.maximum(times, 1)[:, None]
    often = (share > 0) & (2 * times >= jnp.max(times))
    length = jnp.linalg.norm(mean - exact_quantile(mean, jnp.where(often, share, 0.0)), axis=1)
    return length, often & apart(length, jnp.where(often, share, 0.0), hostile)


def apart(length: Array, share: Array, hostile: float) -> Array:
    """Which of the distances are far: the nearest 1 - hostile of the weight, taken for honest, say what is usual."""
    levels = 0.5 * (1 - hostile), 0.99 * (1 - hostile)  # just below n - f: theirs, and not midway to the next
    half, whole = (exact_quantile(length[:, None], share, level)[0] for level in levels)
    return length > jnp.maximum(REACH * half, BEYOND * whole)


def sketch(rows: Array, width: int) -> Array:
    """(k, m) in ``width`` numbers each: sums of every width-th entry with random signs. As they are where m is less."""
    k, m = rows.shape
    if m <= width:
        return rows
    signs = jax.random.rademacher(jax.random.key(0), (m,), rows.dtype)
    return jnp.pad(rows * signs, ((0, 0), (0, -m % width))).reshape(k, -1, width).sum(1)


def correlations(memory: Memory, who: Array) -> tuple[Array, Array]:
    """C (k, k) of the rows' noise, and its standard error where noise is one's own; 0 and 1 where nothing is known."""
    seen = memory.seen[who]
    noise = less_habit(memory.moves[who], seen, memory.sent)
    size = jnp.sqrt(jnp.mean(noise**2, axis=(0, 1)))
    noise = noise / jnp.maximum(size, jnp.finfo(size.dtype).tiny)
    spent = jnp.minimum((1 + memory.sent.shape[1]) / jnp.maximum(jnp.sum(seen, axis=1), 1), 1.0)
    flat, present = noise.reshape(len(who), -1), seen.astype(noise.dtype)
    product = jnp.matmul(flat, flat.T, precision="highest")
    square = jnp.matmul(jnp.sum(noise**2, axis=2), present.T, precision="highest")
    both = (present @ present.T) * noise.shape[2] * jnp.sqrt((1 - spent)[:, None] * (1 - spent))
    known = (square > 0) & (square.T > 0) & (both > 1)
    found = jnp.where(known, product / jnp.sqrt(jnp.where(known, square * square.T, 1.0)), 0.0)
    return found, jnp.where(known, 1 / jnp.sqrt(jnp.maximum(both, 1.0)), 1.0)


def less_habit(moves: Array, seen: Array, sent: Array) -> Array:
    """What is left of every client's moves once an affine function of the model sent is taken off, by least squares.

    Regressors are made orthogonal one after the other, over the rounds that a client was seen in.
    """
    present = seen.astype(moves.dtype)
    basis: list[Array] = []
    for column in [jnp.ones_like(sent[:, 0]), *(sent - jnp.mean(sent, axis=0)).T]:
        new = whole = present * column
        for old in basis * 2:  # twice is enough for single precision
            new = new - old * jnp.sum(old * new, axis=1, keepdims=True)
        length, before = (jnp.linalg.norm(each, axis=1, keepdims=True) for each in (new, whole))
        basis.append(jnp.where(length > ROUNDING * before, new / jnp.where(length > 0, length, 1.0), 0.0))
    left = moves
    for old in basis:
        left = left - old[:, :, None] * jnp.sum(old[:, :, None] * left, axis=1, keepdims=True)
    noise, size = (jnp.sqrt(jnp.sum(each**2, axis=(1, 2))) for each in (left, moves))
    return jnp.where((noise > ROUNDING * size)[:, None, None], left * present[:, :, None], 0.0)


def trusted(hostile: float, usable: Array) -> Array:
    """n - f, at least 1: from a table in double precision, less a trifle (``WHOLE``)."""
    n = np.arange(len(usable) + 1)
    return jnp.asarray(np.maximum(n - np.ceil(hostile * n - WHOLE), 1).astype(np.int32))[jnp.sum(usable)]


def worst(scores: Array, suspect: Array, usable: Array, hostile: float, spent: Array | int = 0) -> Array:
    """Those of the suspect that are among the f - spent with the highest scores, f = ceil(hostile n).

    >>> worst(jnp.array([1.0, 9.0, 5.0, 7.0]), jnp.array([True, False, True, True]), jnp.ones(4, bool), 0.25)
    Array([False, False, False,  True], dtype=bool)
    """
    order = jnp.argsort(jnp.argsort(jnp.where(suspect, -scores, jnp.inf)))
    return suspect & (order < jnp.sum(usable) - trusted(hostile, usable) - spent)


def _middle(values: Array, usable: Array) -> tuple[Array, Array]:
    """Median of the usable ones, and their deviation from the median distance to it."""
    values, share = values.reshape(-1, 1), usable.reshape(-1).astype(values.dtype)
    middle = exact_quantile(values, share)
    return middle[0], 1.4826 * exact_quantile(jnp.abs(values - middle), share)[0]
