"""One step of one client (paper, Algorithm 1, lines 5-16): deploy, wait for the data, update the model.

All engines step with these functions and the same keys. They differ in who brings the data and in how the steps are
strung together: compiled in a loop (``local_steps``), one after the other, or at a site far away.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from profl import random, trees
from profl.methods.method import Arrival
from profl.packing import pack_as, unpack
from profl.problem.problem import View
from profl.run.plan import ClientState, Population, Settings, remember_deployed
from profl.server.attacks import Attack, Poisoned
from profl.stages import stage
from profl.typing import Array, Batch, Client, Key, Theta

WORLD = 0x776F726C  # "worl"; folded into a step's key it gives that of the people's own moves


class Progress(NamedTuple):
    """A client in the middle of a round."""

    theta: Theta
    state: ClientState
    regret: Array  # risk of what it deployed above L_i(PO), summed over its steps
    info: dict[str, Array]  # the numbers that its steps state, summed


def client_view(settings: Settings, row: Population) -> View:
    """The problem as one client sees it; the estimates of a hostile client may be poisoned."""
    family, attack = settings.functions.family, settings.attack
    if attack is not None and type(attack).f_hat is not Attack.f_hat:
        family = Poisoned(family, attack, row.hostile)
    return settings.functions.view(row.clients, family)


def samples_wanted(settings: Settings, row: Population, state: Any) -> Array:
    """The number of samples of each step of the next round; if the method pools data, one per member."""
    return row.counts if settings.method.sizes is None else settings.method.samples_wanted(unpack(state).own)


def start_round(settings: Settings, theta: Theta, state: Any) -> Progress:
    """A client before its first step of a round."""
    regret = jnp.zeros(()) if settings.measured else jnp.full((), jnp.nan)
    return Progress(theta, state, regret, {name: jnp.zeros(()) for name in settings.method.info})


def step_key(settings: Settings, root: Key, client: Array | int, round_: Array | int, r: Array | int) -> Key:
    """The key of a client's step number ``r`` of a round."""
    return random.data_key(root, client, round_ * settings.local_steps + r)


def deploy(settings: Settings, row: Population, key: Key, now: Progress) -> tuple[Theta, Progress]:
    """(the deployed model, projected onto the model space; the client after it).

    The simulated population reacts, and the risk of the deployed model is added to the regret.
    """
    reaction = settings.functions.reaction
    deployed, method_state = settings.method.deploy(client_view(settings, row), now.state.own, key, now.theta)
    project, change = settings.functions.project, settings.functions.max_change
    deployed = project(deployed) if change is None else change.nearest(project, deployed, now.state.last)
    world = now.state.world
    if jax.tree.leaves(world):
        with stage("reaction") as check:
            world = check(reaction.move(world, jax.random.fold_in(key, WORLD), deployed, row.clients))
    regret = now.regret
    if settings.measured:
        with stage("risk") as check:
            regret = check(regret + reaction.risk_in(world, deployed, deployed, row.clients) - row.floor)
    return deployed, now._replace(state=now.state._replace(own=method_state, world=world), regret=regret)


def update_client(settings: Settings, row: Population, key: Key, now: Progress, arrival: Arrival) -> Progress:
    """The client after one local step on the data of a deployment."""
    view = client_view(settings, row)
    theta, method_state, info = settings.method.step(view, now.state.own, now.theta, arrival, key)
    info = {name: now.info[name] + info[name] for name in now.info}
    return now._replace(
        theta=theta, state=remember_deployed(now.state._replace(own=method_state), arrival.deployed), info=info
    )


def simulated_step(
    settings: Settings, key: Key, row: Population, round_: Array, last: Array | bool, weights: Array, now: Progress
) -> Progress:
    """The client after one step on data that a reaction draws.

    ``key`` is the step's, and ``weights`` are those of ``batch_weights``.
    """
    deployed, now = deploy(settings, row, key, now)
    with stage("sample") as check:  # line 5: the environment changes, n_i samples come in
        n = weights.shape[0] // row.counts.size
        batch = check(_draw_batch(settings, key, now.state.world, deployed, row, n, round_))
    return update_client(settings, row, key, now, Arrival(batch, weights, deployed, last))


def batch_weights(settings: Settings, n: int, row: Population, state: Any) -> Array:
    """The weights of the n samples of a batch; the same in every step of a round."""
    return settings.functions.reaction.weights(row.clients, n, samples_wanted(settings, row, state))


def _draw_batch(
    settings: Settings, key: Key, world: Any, deployed: Theta, row: Population, n: int, round_: Array
) -> Batch:
    """A batch of n samples, computed once if the method reads it several times."""

    def make() -> Batch:
        return sample_batch(settings, key, world, deployed, row.clients, n)

    return trees.materialise(make, round_ >= 0) if settings.method.rereads else make()


def local_steps(
    settings: Settings, n: int, root: Key, round_: Array, theta: Theta, client: Array, row: Population, state: Any
) -> Progress:
    """A client after its R local steps, compiled as a loop; its ``state`` may be packed."""
    weights = batch_weights(settings, n, row, state)

    def body(now: Progress, step: tuple[Key, Array]) -> tuple[Progress, None]:
        inside = now._replace(state=unpack(now.state))
        new = simulated_step(settings, step[0], row, round_, step[1], weights, inside)
        return new._replace(state=pack_as(now.state, new.state)), None

    steps = jnp.arange(settings.local_steps)
    keys = jax.vmap(lambda r: step_key(settings, root, client, round_, r))(steps)
    first = start_round(settings, theta, state)
    return jax.lax.scan(body, first, (keys, steps == settings.local_steps - 1))[0]


def sample_batch(settings: Settings, key: Key, world: Any, theta: Theta, client: Client, n: int) -> Batch:
    """n samples of a client's data under the deployed theta, with its population in the state ``world``.

    Where n varies, they are drawn in blocks with a key each, so that a smaller batch is the beginning of a larger one
    and the samples do not depend on how many more an engine draws for its own convenience.
    """
    reaction, sizes = settings.functions.reaction, settings.method.sizes
    if sizes is None:
        return reaction.sample_in(world, key, theta, client, n)
    block = sizes[0]
    keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(n // block))
    return trees.concatenate_batches(jax.vmap(lambda k: reaction.sample_in(world, k, theta, client, block))(keys))
