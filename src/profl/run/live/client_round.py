"""A client's part of a round (paper, Algorithm 1, lines 5-16), on data that come from elsewhere.

The same step as in every engine, with the same keys. ``local_round`` makes all R steps at once, for Flower; a campaign
makes them one at a time, and days may lie between ``deploy_next`` and ``use_batch``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from profl import trees
from profl.methods.method import Arrival
from profl.parts.privacy import Privacy
from profl.problem.reaction import Reaction
from profl.run import step
from profl.run.live import batches
from profl.run.live.batches import Answer, Failure
from profl.run.live.protection import private_round
from profl.run.plan import CompiledPlan, Population, batch_shape, compile_for_settings
from profl.run.round import Work
from profl.run.run_history import client_work, figure_names
from profl.run.step import Progress
from profl.typing import Batch, Key, Theta

Read = Callable[[Any], Answer]
Ask = Callable[[Read, Theta, int, int, Any], Answer]
"""``ask(read, deployed, samples, step, world)``: what ``read`` makes of the client's answer. Both run code of the
client's, so both belong inside its time limit. ``world`` is the state of simulated people, which others do not need."""


class RoundSetup(NamedTuple):
    """What a client's round needs besides the round itself; the same for all clients and rounds."""

    plan: CompiledPlan
    like: Batch  # the structure, shapes and dtypes of a batch: ``plan.batch_shape``
    figures: tuple[str, ...]  # the names of the method's figures
    privacy: Privacy | None = None


def make_setup(plan: CompiledPlan, privacy: Privacy | None = None) -> RoundSetup:
    """The setup of a run whose clients are known to this process."""
    like = batch_shape(plan.settings, plan.population, trees.take(plan.models, 0), plan.settings.samples)
    return RoundSetup(plan, like, figure_names(plan), privacy)


def local_round(setup: RoundSetup, round_: int, client: int, theta: Theta, state: Any, ask: Ask) -> Work:
    """The client's report and its new state after R steps; with privacy there is always a report.

    Raises ``InputError`` where a batch cannot be used, ``Failure`` where there is none or the model is not finite.
    """
    plan, like, figures, privacy = setup

    def steps() -> Work:
        settings, root, row = plan.settings, plan.roots[0], trees.take(plan.population, client)
        wanted = int(step.samples_wanted(settings, row, state))
        now, total = step.start_round(settings, theta, state), 0
        for r in range(settings.local_steps):
            key = key_of(setup, root, client, round_, r)
            deployed, now = deploy_next(setup, row, key, now)
            family, number = settings.functions.family, round_ * settings.local_steps + r
            read = partial(batches.read_answer, like=like, deployed=deployed, family=family, requested=wanted)
            batch, deployed, _ = ask(read, finite_copy(deployed), wanted, number, now.state.world)
            now = use_batch(setup, row, key, r, now, batch, deployed, wanted)
            total += batches.rows(batch)
        return client_work(settings, row, now, total, figures)

    return steps() if privacy is None else private_round(privacy, plan, theta, state, client, round_, steps)


def key_of(setup: RoundSetup, root: Key, client: int, round_: int, r: int) -> Key:
    """The key of a client's step r in a round."""
    return _key(setup.plan.settings, root, client, round_, r)


def deploy_next(setup: RoundSetup, row: Population, key: Key, now: Progress) -> tuple[Theta, Progress]:
    """(what the client of that ``row`` deploys, the client after that)."""
    deployed, after = _deploy(setup.plan.settings, row, key, now)
    return deployed, after


def use_batch(
    setup: RoundSetup, row: Population, key: Key, r: int, now: Progress, batch: Batch, deployed: Theta, wanted: int
) -> Progress:
    """The client after step r, given what the ``deployed`` model brought in; ``wanted`` rows were asked for."""
    settings = setup.plan.settings
    count = batches.rows(batch)
    batch = batches.pad(batch, settings.size(wanted))
    weights = _weights(row.clients, batches.rows(batch), np.int32(count))
    last = jax.device_put(r == settings.local_steps - 1)
    after: Progress = _use(settings, row, key, now, Arrival(batch, weights, deployed, last))
    return after


def finite_copy(model: Theta) -> Theta:
    """A copy of a finite model for the client; it lies in the model space (``step.deploy``)."""
    copy = jax.tree.map(np.array, model)
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(copy)):
        raise Failure("came to a model with NaN or Inf in it, which is not deployed: are its data of an absurd size?")
    return copy


_key = compile_for_settings(step.step_key)
_weights = jax.jit(Reaction().weights, static_argnums=1)
_deploy = compile_for_settings(step.deploy)
_use = compile_for_settings(step.update_client)
