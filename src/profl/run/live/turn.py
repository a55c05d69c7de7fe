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
from profl.methods.method import Arrival
from profl.parts.privacy import Privacy
from profl.problem.families import Family
from profl.problem.misfits import check_labels
from profl.problem.reaction import Reaction
from profl.run import step
from profl.run.live import batches
from profl.run.live.protection import private_round
from profl.run.live.workers import Failure
from profl.run.plan import Plan, compiled
from profl.run.round import Work
from profl.run.run_history import one_row
from profl.run.step import samples_wanted
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
    """R steps: the client's report and its new state.

    Raises ``InputError`` where a batch cannot be used, and ``Failure`` where there is none or nothing may be deployed.

    ``like`` has the structure, shapes and dtypes of a batch (``plan.batch_shape``), ``figures`` are the names of the
    method's (``ledger.figure_names``). With ``privacy`` there is always a report.
    """

    def steps() -> Work:
        settings, row = plan.settings, trees.take(plan.population, client)
        wanted = int(samples_wanted(settings, row, state))
        now, drawn = step.start(settings, theta, state), 0
        for r in range(settings.local_steps):
            key = _key(settings, root, client, round_, r)
            deployed, now = _deploy(settings, row, key, now)
            number = round_ * settings.local_steps + r
            read = partial(_read, like=like, deployed=deployed, family=settings.functions.family, asked=wanted)
            batch, deployed, _ = ask(read, _deployable(deployed), wanted, number, now.state.world)
            count = batches.rows(batch)
            batch = batches.pad(batch, settings.size(wanted))
            weights = Reaction().weights(row.clients, batches.rows(batch), jnp.int32(count))
            last = jnp.asarray(r == settings.local_steps - 1)
            now = _use(settings, row, key, now, Arrival(batch, weights, deployed, last))
            drawn += count
        return one_row(settings, row, now, drawn, figures)

    return steps() if privacy is None else private_round(privacy, plan, theta, state, client, round_, steps)


def _read(answer: Any, like: Batch, deployed: Theta, family: Family, asked: int) -> Arrived:
    """The batch, and the model that brought it in; raises ``InputError``, or ``Failure`` where there is none."""
    if isinstance(answer, batches.Delayed):
        answer, said = answer
        checks.same_structure("the model of a Delayed batch", said, deployed)
        checks.finite_tree("the model of a Delayed batch", said)
        deployed = trees.cast(jax.tree.map(np.array, said))
    if answer is None:
        raise Failure("sent nothing")
    batch, missing = batches.read(answer, like, asked)
    if batches.rows(batch) == 0:
        raise Failure(f"sent nothing: all {missing} rows have missing values" if missing else "sent an empty batch")
    check_labels(family, family.labels(batch))
    return Arrived(batch, deployed, missing)


def _deployable(model: Theta) -> Theta:
    """A copy for the client, which must be finite; it lies in the model space (``step.deploy``)."""
    copy = jax.tree.map(np.array, model)
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(copy)):
        raise Failure("came to a model with NaN or Inf in it, which is not deployed: are its data of an absurd size?")
    return copy


_key = compiled(step.step_key)
_deploy = compiled(step.deploy)
_use = compiled(step.use)
