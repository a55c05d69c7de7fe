"""The server's side of a run, round by round, for one seed (paper, Algorithm 1, lines 3 and 18-21).

Who is asked, what is made of the answers, and what is counted: the same for every engine that is not compiled as a
whole. ``debug``, ``loop`` and ``flower`` differ only in how the clients that are asked do their work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl import random, trees
from profl.checks import DivergedError
from profl.client.step import State
from profl.engines.plan import Plan, Settings, first_states, hand_out
from profl.results.record import Jacobians, Live, Trace
from profl.server.aggregate import receive
from profl.server.attacks import Report, apply
from profl.server.participation import choose
from profl.typing import Array, Key, Theta


class Work(NamedTuple):
    """What one client made of a round."""

    theta: Theta
    state: Any  # what is kept for its next round; it has a field ``shared``
    loss: Array | float
    regret: Array | float  # risk of what it deployed above L_i(PO), summed over its steps
    kept: Array | float
    samples: int  # drawn in the whole round
    jacobian: Array | None = None  # its own, where Jacobians are shared
    jacobian_error: Array | float = math.nan
    sound: bool = True  # whether what it keeps is finite


class Tally(NamedTuple):
    """What is counted between two records; the first seven as in ``Trace``."""

    regret: float = 0.0
    deployments: int = 0
    samples: int = 0
    refused: int = 0
    bad_round: int = -1
    bad_client: int = -1
    kept: float = 0.0
    risk: float = math.nan  # of the last round: the mean loss that the clients report
    jacobian_error: float = math.nan
    absent: int = 0


class Server(NamedTuple):
    """What the next round needs, and the history."""

    round: int  # rounds that are done
    theta: Theta
    first: Theta  # the model that the run began with
    states: list[Any]  # one per client
    stopped: int  # the round in which the run was given up, -1 where it was not
    idle: int  # rounds in a row with too few reports
    records: list[Theta]
    tallies: list[Tally]
    since: Tally  # since the last record


Clients = Callable[[int, list[int], Theta, list[Any]], dict[int, Work]]
"""``(round, clients, theta, states) -> work``; a client that is not in the answer did not answer."""


def begin(plan: Plan, index: int, states: list[Any] | None = None) -> Server:
    """Before the first round of the plan's seed number ``index``."""
    theta = trees.take(plan.models, index)
    if states is None:
        stacked = first_states(plan.settings, plan.population, theta)
        states = [trees.take(stacked, i) for i in range(plan.population.weights.shape[0])]
    return Server(0, theta, theta, states, -1, 0, [jax.tree.map(np.asarray, theta)], [], Tally())


class Asked(NamedTuple):
    """Who takes part in a round; under "weighted" a client may stand there twice."""

    chosen: Array
    weights: Array

    @property
    def clients(self) -> list[int]:
        return sorted(set(np.asarray(self.chosen).tolist()))


def one_round(plan: Plan, root: Key, server: Server, clients: Clients, where: str, patience: int = 1) -> Server:
    """The server after one more round. Too few reports in ``patience`` rounds in a row stop the run."""
    if server.stopped >= 0:
        return _record(plan.settings, server._replace(round=server.round + 1))
    asked = whom_to_ask(plan, root, server)
    done = clients(server.round, asked.clients, server.theta, server.states)
    return take_answers(plan, root, server, asked, done, where, patience)


def whom_to_ask(plan: Plan, root: Key, server: Server) -> Asked:
    """Line 3: the server sends the global model to the clients of this round."""
    key = random.participation_key(root, server.round)
    return Asked(*choose(key, plan.settings.scheme, plan.settings.slots, plan.population.weights))


def take_answers(
    plan: Plan, root: Key, server: Server, asked: Asked, done: dict[int, Work], where: str, patience: int = 1
) -> Server:
    """Lines 18-21: it combines what came back, and shares Jacobians; who is not in ``done`` did not answer."""
    settings, round_ = plan.settings, server.round
    rows = np.asarray(asked.chosen).tolist()
    works = [done[c] if c in done else _nobody(settings, server, c) for c in rows]
    reports, states = _reports(works), trees.stack([work.state for work in works])
    if settings.attack is not None:
        hostile = plan.population.hostile[asked.chosen]
        reports = apply(settings.attack, reports, server.theta, server.first, hostile)
    with stage(f"{where}, round {round_ + 1}", "aggregate") as check:
        sound = jnp.asarray([work.sound for work in works])
        key = random.server_key(root, round_)
        answer = _receive(settings.rule, settings.clusters, key, reports, asked.weights, sound, server.theta)
        accepted = np.asarray(answer.accepted)
        if accepted.sum() < settings.min_reports:
            idle = server.idle + 1
            after = server._replace(idle=idle, stopped=round_ if idle >= patience else -1)
            return _record(settings, after._replace(round=round_ + 1, since=_absent(server.since, rows, done)))
        theta = check(answer.theta)
    handed = hand_out(states, answer)
    kept = list(server.states)
    for row, client in enumerate(rows):
        if accepted[row]:
            kept[client] = trees.take(handed, row)
    since = _count(settings, server.since, round_, rows, done, works, asked.weights, accepted)
    return _record(settings, server._replace(round=round_ + 1, theta=theta, states=kept, idle=0, since=since))


def trace(server: Server) -> tuple[Trace, Live]:
    """What was recorded, one seed; and the figures that stand in where nothing is known exactly."""
    models = jax.tree.map(lambda *leaves: np.stack(leaves), *server.records)
    columns = [np.array(column) for column in zip(*server.tallies, strict=True)]
    live = Live(*(np.concatenate([[math.nan if i < 2 else 0], c])[None] for i, c in enumerate(columns[7:])))
    return Trace(models, *columns[:7], final=None), live  # type: ignore[misc, arg-type]


def own_jacobian(settings: Settings, state: State) -> Array | None:
    """What one client reports of its Jacobian; None where they are not shared."""
    return _estimate(settings, state.jacobian) if settings.recipe.share else None


def final_jacobians(settings: Settings, states: list[State]) -> Jacobians | None:
    """What each client had at the end; None where Jacobians are not shared."""
    if not settings.recipe.share:
        return None
    shared = trees.stack([state.shared for state in states])
    own = np.stack([np.asarray(own_jacobian(settings, state)) for state in states])
    return Jacobians(own, np.asarray(shared.jacobian), np.asarray(shared.group))


@contextmanager
def stage(where: str, name: str) -> Iterator[Any]:
    """Yields a check that lets finite values through; errors inside are raised again with the place in front."""

    def check(values: Any) -> Any:
        for path, leaf in jax.tree_util.tree_leaves_with_path(values):
            if not np.all(np.isfinite(np.asarray(leaf))):
                raise DivergedError(f"{where}, stage {name!r}: NaN or Inf in the result{jax.tree_util.keystr(path)}")
        return values

    try:
        yield check
    except DivergedError:
        raise
    except Exception as error:
        raise RuntimeError(f"{where}, stage {name!r}: {type(error).__name__}: {error}") from error


_receive = partial(jax.jit, static_argnums=(0, 1))(receive)
_estimate = partial(jax.jit, static_argnums=0)(lambda settings, memory: settings.recipe.estimator.estimate(memory))


def _reports(works: list[Work]) -> Report:
    jacobian = None if works[0].jacobian is None else jnp.stack([jnp.asarray(work.jacobian) for work in works])
    losses = jnp.stack([jnp.asarray(work.loss, dtype=float) for work in works])
    stated = None if jacobian is None else jnp.stack([jnp.asarray(work.jacobian_error, dtype=float) for work in works])
    return Report(trees.stack([work.theta for work in works]), losses, jacobian, stated)


def _nobody(settings: Settings, server: Server, client: int) -> Work:
    """In place of a report that did not come: the shapes of one, nothing finite, so that nobody counts it."""
    theta = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), server.theta)
    state = server.states[client]
    jacobian = jnp.full_like(state.shared.jacobian, jnp.nan) if settings.recipe.share else None
    return Work(theta, state, math.nan, math.nan, math.nan, 0, jacobian, sound=False)


def _count(
    settings: Settings,
    tally: Tally,
    round_: int,
    asked: list[int],
    done: dict[int, Work],
    works: list[Work],
    weights: Array,
    accepted: np.ndarray,
) -> Tally:
    tally = _absent(tally, asked, done)
    share = np.where(accepted, np.asarray(weights), 0.0)
    share = share / share.sum()

    def mean(name: str) -> float:
        values = np.array([float(getattr(work, name)) for work in works])
        return float(share @ np.where(accepted, values, 0.0))

    turned_away = sorted({c for c, good in zip(asked, accepted, strict=True) if c in done and not good})
    first = bool(turned_away) and tally.bad_round < 0
    return tally._replace(
        regret=tally.regret + mean("regret"),
        deployments=tally.deployments + settings.local_steps * len(done),
        samples=tally.samples + sum(work.samples for work in done.values()),
        refused=tally.refused + len(turned_away),
        bad_round=round_ if first else tally.bad_round,
        bad_client=turned_away[0] if first else tally.bad_client,
        kept=tally.kept + float(np.nanmean([float(work.kept) for work in works])),
        risk=mean("loss"),
        jacobian_error=mean("jacobian_error"),
    )


def _absent(tally: Tally, asked: list[int], done: dict[int, Work]) -> Tally:
    return tally._replace(absent=tally.absent + len(set(asked) - set(done)))


def _record(settings: Settings, server: Server) -> Server:
    """The server with this round in its history, where it is one of those that are recorded."""
    if server.round % settings.record_every and server.round != settings.rounds:
        return server
    model = jax.tree.map(np.asarray, server.theta)
    return server._replace(records=[*server.records, model], tallies=[*server.tallies, server.since], since=Tally())


def pack(server: Server) -> tuple[Any, Any]:
    """(what the next round needs, the history) as pytrees of arrays, for a checkpoint."""
    state = {
        "theta": server.theta,
        "first": server.first,
        "states": server.states,
        "stopped": np.int64(server.stopped),
        "idle": np.int64(server.idle),
        "since": server.since,
    }
    return state, {"records": _stack(server.records), "tallies": _stack([Tally(), *server.tallies])}


def unpack(round_: int, state: Any, history: Any) -> Server:
    """The server that ``pack`` packed."""
    count = len(history["tallies"].regret)
    tallies = [Tally(*(value.item() for value in trees.take(history["tallies"], i))) for i in range(1, count)]
    theta, first, states = jax.tree.map(jnp.asarray, (state["theta"], state["first"], state["states"]))
    return Server(
        round_,
        theta,
        first,
        states,
        int(state["stopped"]),
        int(state["idle"]),
        [trees.take(history["records"], i) for i in range(count)],
        tallies,
        Tally(*(value.item() for value in state["since"])),
    )


def _stack(rows: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *rows)
