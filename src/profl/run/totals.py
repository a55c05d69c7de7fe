"""Totals of a run for one seed, as arrays, so that they can be compiled.

``Totals`` are summed between two records and then start at zero again. ``Dropped`` is summed over the whole run: how
much the filter dropped at each client, two numbers per client whatever the number of rounds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl import trees
from profl.numerics import exact_quantile
from profl.server.rule_base import weighted_mean
from profl.typing import Array

BITS = 10
THOUSAND = 2**BITS  # a power of two, so that counting in it is exact and cheap


class Count(NamedTuple):
    """An integer that may exceed 2**31, as two 32-bit integers: ``units + 1024 * thousands``."""

    units: Array
    thousands: Array


class Totals(NamedTuple):
    """Sums over the rounds between two records; rounds with too few reports add only to ``absent``.

    The names of the fields are part of the checkpoint format.
    """

    regret: Array  # sum over local steps of the participants' weighted risk above L(PO)
    deployments: Any  # a Count on the device, on the host one number; so are the samples
    samples: Any
    refused: Array  # reports that could not be used
    absent: Array  # participants that sent nothing
    bad_round: Array  # the round of the first refused report, -1 if there was none
    bad_client: Array  # the client that sent it, -1 if there was none
    info: dict[str, Array]  # sums over rounds of the participants' weighted means
    latest: dict[str, Array]  # the last round's means of info and figures, and its ``LOSS_RANGE``
    unreported: Any = None  # where clients are real, (deployments, samples) of which no report came; on the host alone


LOSS_RANGE = ("loss_low", "loss_high")
"""Names of the lowest and the highest loss of a participant."""
LOSS_MEDIAN = "loss_middle"
"""Name of the weighted median of the participants' losses, which a minority of the weight cannot move beyond the losses
of the others. Engines with real clients, which may report any loss, ask for it: ``zero_totals(..., median=True)``."""
LOSS_SUMMARY = (*LOSS_RANGE, LOSS_MEDIAN)


def zero_totals(info: tuple[str, ...], figures: tuple[str, ...] = (), median: bool = False) -> Totals:
    """Totals before any round; ``latest`` is NaN."""
    zero, none_yet, unknown = jax.device_put((np.int32(0), np.int32(-1), np.asarray(np.nan)))
    none = Count(zero, zero)
    names = (*info, *figures, *(LOSS_SUMMARY if median else LOSS_RANGE))
    sums, latest = dict.fromkeys(info, jnp.zeros(())), dict.fromkeys(names, unknown)
    return Totals(jnp.zeros(()), none, none, zero, zero, none_yet, none_yet, sums, latest)


class RoundCounts(NamedTuple):
    """What a round adds to the totals, one row per participant."""

    clients: Array
    weights: Array
    distinct: Array  # bool: not the second slot of a client that was drawn twice
    answered: Array  # bool
    accepted: Array  # bool
    samples: Array  # drawn in the whole round
    regret: Array
    info: dict[str, Array]  # means over the round's steps
    figures: dict[str, Array]


def add_round(totals: Totals, round_: Array, local_steps: int, new: RoundCounts, most_samples: int) -> Totals:
    """The totals with one more round added, in which no client drew more than ``most_samples``."""
    deployed = new.distinct & new.answered
    refused = deployed & ~new.accepted
    refusals = _int_sum(refused)
    is_first = (totals.bad_round < 0) & (refusals > 0)
    one = jnp.min(jnp.where(refused, new.clients, jnp.iinfo(jnp.int32).max))
    columns = [jnp.asarray(value, float) for value in (*new.info.values(), *new.figures.values(), new.regret)]
    *averages, regret = weighted_mean(jnp.stack(columns, -1), new.weights, new.accepted)
    means = dict(zip((*new.info, *new.figures), averages, strict=True))
    summary = loss_range(new.info["loss"], new.accepted)
    if LOSS_MEDIAN in totals.latest:
        summary |= {LOSS_MEDIAN: loss_median(new.info["loss"], new.weights, new.accepted)}
    return Totals(
        totals.regret + regret,
        add_to_count(totals.deployments, local_steps, deployed.astype(jnp.int32), local_steps),
        add_to_count(totals.samples, 1, jnp.where(deployed, new.samples, 0), most_samples),
        totals.refused + refusals,
        totals.absent + _int_sum(new.distinct & ~new.answered),
        jnp.where(is_first, jnp.int32(round_), totals.bad_round),
        jnp.where(is_first, one.astype(jnp.int32), totals.bad_client),
        {name: totals.info[name] + means[name] for name in new.info},
        means | summary,
    )


def loss_range(loss: Array, accepted: Array) -> dict[str, Array]:
    """The lowest and the highest loss of the accepted clients, named as in ``LOSS_RANGE``; NaN if there are none."""
    both = jnp.where(accepted[:, None], jnp.stack([-loss, loss], 1), -jnp.inf)
    most = jnp.max(both, 0)
    ends = jnp.where(most > -jnp.inf, most * np.array([-1.0, 1.0], most.dtype), jnp.nan)
    return dict(zip(LOSS_RANGE, ends, strict=True))


def loss_median(loss: Array, weights: Array, accepted: Array) -> Array:
    """The weighted median of the losses of the accepted clients, a scalar; NaN if there are none.

    >>> loss_median(jnp.array([-1e6, 1.0, 2.0, jnp.nan]), jnp.full(4, 0.25), jnp.array([True, True, True, False]))
    Array(1., dtype=float32)
    """
    share = jnp.where(accepted, weights, 0.0)
    median = exact_quantile(jnp.where(share > 0, loss, 0.0)[:, None], share)[0]
    return jnp.where(jnp.sum(share) > 0, median, jnp.nan)


def zero_counts(totals: Totals) -> Totals:
    """Totals (on the host) of a record after the end of a run: all counts zero, ``latest`` unchanged."""
    zeros = jax.tree.map(np.zeros_like, totals)
    return zeros._replace(bad_round=zeros.bad_round - 1, bad_client=zeros.bad_client - 1, latest=totals.latest)


def totals_to_host(totals: Totals) -> Totals:
    """The totals as NumPy arrays, each ``Count`` as one 64-bit integer.

    They are copies: a view would keep the device's array, which takes some ten times the memory of a number.
    """
    on_host = jax.tree.map(np.array, totals)
    counts = {
        name: value.units + THOUSAND * value.thousands.astype(np.int64)
        for name, value in (("deployments", on_host.deployments), ("samples", on_host.samples))
    }
    return on_host._replace(**counts)


def add_to_count(total: Count, times: int, values: Array, most: int = 2**31) -> Count:
    """The count plus ``times`` times the sum of the values, none of which is above ``most / times``."""
    if most * values.shape[0] < 2**31 - THOUSAND:
        units = total.units + times * _int_sum(values)
        return Count(units & THOUSAND - 1, total.thousands + (units >> BITS))
    padded = jnp.pad(values & THOUSAND - 1, (0, -values.shape[0] % THOUSAND))
    groups = padded.reshape(-1, THOUSAND).sum(1, dtype=jnp.int32)
    low, high = _int_sum(groups & THOUSAND - 1), _int_sum(values >> BITS) + _int_sum(groups >> BITS)
    units = total.units + times * (low & THOUSAND - 1)
    return Count(units & THOUSAND - 1, total.thousands + times * (high + (low >> BITS)) + (units >> BITS))


def _int_sum(values: Array) -> Array:
    """The sum as a 32-bit integer."""
    return jnp.sum(values, dtype=jnp.int32)


# -- what the filter dropped at each client over a whole run ----------------------------------------------------------


class Dropped(NamedTuple):
    """Sums over accepted reports that state a kept share, one row per client."""

    total: Array  # the share of the weight that was dropped, a mean over a round's batches, summed over rounds
    rounds: Array  # how many reports were summed


def zero_dropped(clients: int) -> Dropped:
    """Sums before the first round."""
    return Dropped(jnp.zeros(clients), jnp.zeros(clients, jnp.int32))


def add_dropped(dropped: Dropped, clients: Array, kept_share: Array, accepted: Array) -> Dropped:
    """The sums after one more round, given the share that each participant kept; one drawn twice counts once."""
    counts = accepted & jnp.isfinite(kept_share)
    before = trees.take(dropped, clients)
    share = jnp.where(counts, jnp.clip(1.0 - kept_share, 0.0, 1.0), 0.0)
    after = Dropped(before.total + share, before.rounds + counts)
    return jax.tree.map(lambda sums, rows: sums.at[clients].set(rows), dropped, after)


def mean_dropped_share(dropped: Dropped) -> np.ndarray:
    """The mean share dropped at each client, shape (clients,); NaN if no report was summed."""
    total, rounds = np.asarray(dropped.total, float), np.asarray(dropped.rounds)
    return np.divide(total, rounds, out=np.full(total.shape, np.nan), where=rounds > 0)
