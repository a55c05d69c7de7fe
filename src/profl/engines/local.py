"""R local steps of one client whose batches come from elsewhere (paper, Algorithm 1, lines 5-16).

The same ``deploy`` and ``step`` as in the compiled engine, with the same keys. ``loop`` and ``flower`` use it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl import random, trees
from profl.client import step as parts
from profl.client.privacy import Privacy
from profl.engines import batches
from profl.engines.plan import Plan, Settings
from profl.engines.rounds import Work, own_jacobian
from profl.problem.oracle import told_jacobian
from profl.problem.reaction import Reaction
from profl.typing import Array, Batch, Client, Key, Theta

Ask = Callable[[Theta, int, int], Any]
"""``ask(deployed, samples, step)``: what came in, as the client gave it."""


def local_round(
    plan: Plan,
    like: Batch,
    root: Key,
    round_: int,
    client: int,
    theta: Theta,
    state: parts.State,
    ask: Ask,
    privacy: Privacy | None = None,
) -> Work:
    """The client's report and its new state; raises ``InputError`` where a batch cannot be used.

    ``like`` has the structure, shapes and dtypes of a batch (``plan.batch_shape``).
    """
    settings, sent = plan.settings, theta
    rules, recipe = settings.rules, settings.recipe
    row = trees.take(plan.population, client)
    wanted = int(row.counts if recipe.size is None else state.samples)
    regret, kept, drawn = jnp.full((), 0.0 if settings.measured else jnp.nan), [], 0
    for r in range(settings.local_steps):
        number = round_ * settings.local_steps + r
        key = _key(root, client, number)
        deployed, state = _deploy(rules, recipe, state, key, theta)
        if settings.measured:
            regret = regret + _risk(rules.reaction, deployed, row.clients) - row.floor
        told = _told(rules.reaction, deployed, row.clients) if recipe.told else None
        answer = ask(jax.tree.map(np.array, deployed), wanted, number)
        batch, deployed = _read(answer, like, deployed)
        count = batches.rows(batch)
        batch = batches.pad(batch, _size(settings, wanted))
        weights = Reaction().weights(row.clients, batches.rows(batch), jnp.int32(count))
        last = r == settings.local_steps - 1
        theta, state, info = _step(rules, recipe, state, theta, batch, weights, told, deployed, None, last)
        kept.append(float(info.kept))
        drawn += count
    done = Work(
        theta,
        state,
        info.loss,
        regret,
        float(np.mean(kept)),
        drawn,
        own_jacobian(settings, state),
        info.jacobian_error,
        bool(_sound(info.loss, state.jacobian)),
    )
    return done if privacy is None else _protected(privacy, sent, done, wanted * settings.local_steps, client, round_)


def _protected(privacy: Privacy, sent: Theta, work: Work, samples: int, client: int, round_: int) -> Work:
    """What may leave the client: the noised model and Jacobian, and no other number that depends on its data."""
    number = round_ * 2**20 + client
    return work._replace(
        theta=privacy.model(sent, work.theta, number),
        jacobian=None if work.jacobian is None else privacy.jacobian(work.jacobian, number),
        loss=0.0,
        regret=float("nan"),
        kept=1.0,
        samples=samples,
        jacobian_error=float("nan"),
    )


def _read(answer: Any, like: Batch, deployed: Theta) -> tuple[Batch, Theta]:
    """The batch, and the model that brought it in."""
    if isinstance(answer, batches.Delayed):
        earlier = trees.cast(answer.deployed)
        return _nonempty(answer.batch, like), earlier
    return _nonempty(answer, like), deployed


def _nonempty(answer: Any, like: Batch) -> Batch:
    if answer is None:
        raise Silent("sent nothing")
    batch = batches.read(answer, like)
    if batches.rows(batch) == 0:
        raise Silent("sent an empty batch")
    return batch


class Silent(ValueError):
    """A client that has no data to send."""


def _size(settings: Settings, wanted: int) -> int:
    """The size that a batch is padded to."""
    return settings.samples if settings.recipe.size is None else next(n for n in settings.sizes if n >= wanted)


@partial(jax.jit, static_argnums=0)
def _risk(reaction: Reaction, theta: Theta, client: Client) -> Array:
    assert reaction.decoupled is not None
    return reaction.decoupled(theta, theta, client)


_key = jax.jit(random.data_key)
_deploy = partial(jax.jit, static_argnums=(0, 1))(parts.deploy)
_step = partial(jax.jit, static_argnums=(0, 1))(parts.step)
_told = partial(jax.jit, static_argnums=0)(told_jacobian)
_sound = jax.jit(lambda *values: trees.all_finite(values))
