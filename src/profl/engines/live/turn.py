"""A client's part of a round whose batches come from elsewhere (paper, Algorithm 1, lines 5-16).

The same step as in every engine, with the same keys. ``train`` and Flower use it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks, trees
from profl.algorithms.method import Arrival
from profl.client.privacy import Privacy
from profl.engines import step
from profl.engines.ledger import blank, one_row
from profl.engines.live import batches
from profl.engines.live.workers import Silent
from profl.engines.plan import Plan, compiled
from profl.engines.round import Work
from profl.engines.step import samples_wanted
from profl.problem.families import Family
from profl.problem.misfits import check_labels
from profl.problem.reaction import Reaction
from profl.typing import Batch, Key, Theta


class Arrived(NamedTuple):
    """What a deployment brought in."""

    batch: Batch
    deployed: Theta  # the model that brought it in
    missing: int  # rows that were left out


Read = Callable[[Any], Arrived]
Ask = Callable[[Read, Theta, int, int, Any], Arrived]
"""``ask(read, deployed, samples, step, world)``: what ``read`` makes of the client's answer. Both run code of the
client's, so both belong inside its time limit. ``world`` is the state of simulated people, which others do not need."""


def local_round(
    plan: Plan,
    like: Batch,
    figures: tuple[str, ...],
    root: Key,
    round_: int,
    client: int,
    theta: Theta,
    state: Any,
    ask: Ask,
    privacy: Privacy | None = None,
) -> Work:
    """R steps: the client's report and its new state; raises ``InputError`` where a batch cannot be used.

    ``like`` has the structure, shapes and dtypes of a batch (``plan.batch_shape``), ``figures`` are the names of the
    method's (``ledger.figure_names``).
    """
    settings = plan.settings
    row = trees.take(plan.population, client)
    wanted = int(samples_wanted(settings, row, state))
    now, drawn = step.start(settings, theta, state), 0
    for r in range(settings.local_steps):
        key = _key(settings, root, client, round_, r)
        deployed, now = _deploy(settings, row, key, now)
        number = round_ * settings.local_steps + r
        read = partial(_read, like=like, deployed=deployed, family=settings.functions.family, asked=wanted)
        batch, deployed, _ = ask(read, jax.tree.map(np.array, deployed), wanted, number, now.state.world)
        count = batches.rows(batch)
        batch = batches.pad(batch, settings.size(wanted))
        weights = Reaction().weights(row.clients, batches.rows(batch), jnp.int32(count))
        last = jnp.asarray(r == settings.local_steps - 1)
        now = _use(settings, row, key, now, Arrival(batch, weights, deployed, last))
        drawn += count
    work = one_row(settings, row, now, drawn, figures)
    return work if privacy is None else protected(privacy, theta, work, wanted * settings.local_steps, client, round_)


PROTECTED = {"theta", "jacobian", "jacobian_error"}


def check_privacy(plan: Plan, privacy: Privacy | None) -> None:
    """Refuse a method that reports what ``privacy`` has no way to protect, or more often than it accounts for."""
    method = plan.settings.method
    if privacy is None:
        return
    other = sorted(set(blank(plan).reports) - PROTECTED)
    if method.exchanges or other:
        more = f"reports {', '.join(other)}" if other else "exchanges more than that"
        raise checks.InputError(
            f"privacy protects a model and a Jacobian once a round; {method.name} {more}: use pfl, pofl or profl"
        )


def protected(privacy: Privacy, sent: Theta, work: Work, samples: int, client: int, round_: int) -> Work:
    """What may leave the client: the noised model and Jacobian, and no other number that depends on its data."""
    number = round_ * 2**20 + client
    reports = {"theta": privacy.model(sent, work.reports["theta"], number)}
    if "jacobian" in work.reports:
        unknown = jnp.full_like(work.reports["jacobian_error"], UNKNOWN)
        reports |= {"jacobian": privacy.jacobian(work.reports["jacobian"], number), "jacobian_error": unknown}
    nothing = {name: jnp.asarray(jnp.nan if name == "kept" else 0.0) for name in work.info}
    unknown_figures = {name: jnp.full((), jnp.nan) for name in work.figures}
    return work._replace(
        reports=reports,
        regret=jnp.full((), jnp.nan),
        info=nothing,
        figures=unknown_figures,
        samples=jnp.int32(samples),
    )


UNKNOWN = -1.0  # an error that a client does not state: no error is negative


def _read(answer: Any, like: Batch, deployed: Theta, family: Family, asked: int) -> Arrived:
    """The batch, and the model that brought it in; raises ``InputError`` or ``Silent``."""
    if isinstance(answer, batches.Delayed):
        answer, said = answer
        checks.same_structure("the model of a Delayed batch", said, deployed)
        checks.finite_tree("the model of a Delayed batch", said)
        deployed = trees.cast(jax.tree.map(np.array, said))
    if answer is None:
        raise Silent("sent nothing")
    batch, missing = batches.read(answer, like, asked)
    if batches.rows(batch) == 0:
        raise Silent(f"sent nothing: all {missing} rows have missing values" if missing else "sent an empty batch")
    check_labels(family, family.labels(batch))
    return Arrived(batch, deployed, missing)


_key = compiled(step.step_key)
_deploy = compiled(step.deploy)
_use = compiled(step.use)
