"""What is counted between two records of a run, for one seed; in arrays, so that it can be compiled."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl.numerics import exact_quantile
from profl.server.rule_base import weighted_mean
from profl.typing import Array

THOUSAND = 1024  # a power of two, so that counting in it is exact and cheap


class Count(NamedTuple):
    """A whole number past 2**31, in two of 32 bits: ``units + 1024 * thousands``."""

    units: Array
    thousands: Array


class Tally(NamedTuple):
    """See the module. ``rounds`` counts those that changed something."""

    regret: Array  # sum over local steps of the participants' weighted risk above L(PO)
    deployments: Any  # a Count on the device, on the host one number; so are the samples
    samples: Any
    refused: Array
    absent: Array  # how often a client that was asked sent nothing
    bad_round: Array  # of the first refused report, -1 where there was none
    bad_client: Array
    info: dict[str, Array]  # sums over rounds of the participants' weighted means
    latest: dict[str, Array]  # those of the last round, figures that the clients sent with them, and ``BAND``


BAND = ("loss_low", "loss_high")
"""The lowest and the highest loss of a client."""
MIDDLE = "loss_middle"
"""The weighted median of the clients' losses, which no minority of the weight can move beyond the others'. A tally that
is empty with it keeps it: engines whose clients are no simulation, where one may state anything."""
STATED = (*BAND, MIDDLE)


def empty_tally(info: tuple[str, ...], figures: tuple[str, ...] = (), middle: bool = False) -> Tally:
    zero, unknown = jnp.zeros((), jnp.int32), jnp.full((), jnp.nan)
    none = Count(zero, zero)
    names = (*info, *figures, *(STATED if middle else BAND))
    sums, latest = dict.fromkeys(info, jnp.zeros(())), dict.fromkeys(names, unknown)
    return Tally(jnp.zeros(()), none, none, zero, zero, zero - 1, zero - 1, sums, latest)


class Counted(NamedTuple):
    """What a round adds, one row per slot."""

    clients: Array
    weights: Array
    distinct: Array  # bool: not the second slot of a client that was drawn twice
    answered: Array  # bool
    accepted: Array  # bool
    samples: Array  # drawn in the whole round
    regret: Array
    info: dict[str, Array]  # means over the round's steps
    figures: dict[str, Array]


def count(tally: Tally, round_: Array, local_steps: int, new: Counted) -> Tally:
    """The tally with one more round in it."""
    worked = new.distinct & new.answered
    bad = worked & ~new.accepted
    is_first = (tally.bad_round < 0) & jnp.any(bad)
    means = {name: weighted_mean(value, new.weights, new.accepted) for name, value in new.info.items()}
    figures = {name: weighted_mean(value, new.weights, new.accepted) for name, value in new.figures.items()}
    stated = band(new.info["loss"], new.accepted)
    if MIDDLE in tally.latest:
        stated |= {MIDDLE: middle(new.info["loss"], new.weights, new.accepted)}
    return Tally(
        tally.regret + weighted_mean(new.regret, new.weights, new.accepted),
        add(tally.deployments, local_steps, worked.astype(jnp.int32)),
        add(tally.samples, 1, jnp.where(worked, new.samples, 0)),
        tally.refused + _whole(bad),
        tally.absent + _whole(new.distinct & ~new.answered),
        jnp.where(is_first, jnp.int32(round_), tally.bad_round),
        jnp.where(is_first, jnp.int32(new.clients[jnp.argmax(bad)]), tally.bad_client),
        {name: tally.info[name] + value for name, value in means.items()},
        means | figures | stated,
    )


def band(loss: Array, accepted: Array) -> dict[str, Array]:
    """Of the clients whose reports were used; NaN where none was."""
    ends = jnp.min(loss, initial=jnp.inf, where=accepted), jnp.max(loss, initial=-jnp.inf, where=accepted)
    return {name: jnp.where(jnp.any(accepted), end, jnp.nan) for name, end in zip(BAND, ends, strict=True)}


def middle(loss: Array, weights: Array, accepted: Array) -> Array:
    """The weighted median of the losses of the clients whose reports were used; NaN where none was.

    >>> middle(jnp.array([-1e6, 1.0, 2.0, jnp.nan]), jnp.full(4, 0.25), jnp.array([True, True, True, False]))
    Array(1., dtype=float32)
    """
    share = jnp.where(accepted, weights, 0.0)
    found = exact_quantile(jnp.where(share > 0, loss, 0.0)[:, None], share)[0]
    return jnp.where(jnp.sum(share) > 0, found, jnp.nan)


def no_more(tally: Tally) -> Tally:
    """After the end of a run, on the host: nothing to count, and what was the latest."""
    zeros = jax.tree.map(np.zeros_like, tally)
    return zeros._replace(bad_round=zeros.bad_round - 1, bad_client=zeros.bad_client - 1, latest=tally.latest)


def on_host(tally: Tally) -> Tally:
    """NumPy arrays, with counts as single numbers of 64 bits."""
    found = jax.tree.map(np.asarray, tally)
    whole = {
        name: value.units + THOUSAND * value.thousands.astype(np.int64)
        for name, value in (("deployments", found.deployments), ("samples", found.samples))
    }
    return found._replace(**whole)


def add(total: Count, times: int, values: Array) -> Count:
    """The count with ``times`` the sum of the values added."""
    padded = jnp.pad(values % THOUSAND, (0, -values.shape[0] % THOUSAND))
    groups = padded.reshape(-1, THOUSAND).sum(1, dtype=jnp.int32)
    units, thousands = _whole(groups % THOUSAND), _whole(values // THOUSAND) + _whole(groups // THOUSAND)
    low = total.units + times * (units % THOUSAND)
    high = total.thousands + times * (thousands + units // THOUSAND)
    return Count(low % THOUSAND, high + low // THOUSAND)


def _whole(values: Array) -> Array:
    return jnp.sum(values, dtype=jnp.int32)
