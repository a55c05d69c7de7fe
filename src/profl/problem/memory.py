"""Reactions with memory: people who react slowly or in groups, and a world that drifts by itself.

Each wraps a problem. The long-run reaction is the problem's own, so its optimum, its stable point and its risk stay
exact; the cost on the way is in ``run.deployed_regret``. Wraps can be nested.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks, random
from profl.problem.problem import Problem, check_problem
from profl.problem.reaction import Reaction, WrappedReaction
from profl.typing import Array, Batch, Client, Key, Theta


class LongRun(WrappedReaction):
    """A reaction with a state whose client is ``client["inside"]``; what is known exactly is that of ``inner``."""

    client_key = "inside"


# -- slow --------------------------------------------------------------------------------------------------------------


class Slow(LongRun):
    """People respond to an exponential average: average <- average + rate (theta - average), with every deployment."""

    def start(self, theta: Theta, client: Client) -> Any:
        return {"average": theta, "inner": self.inner.start(theta, client["inside"])}

    def move(self, state: Any, key: Key, theta: Theta, client: Client) -> Any:
        average = jax.tree.map(lambda old, new: old + client["rate"] * (new - old), state["average"], theta)
        return {"average": average, "inner": self.inner.move(state["inner"], key, average, client["inside"])}

    def sample_in(self, state: Any, key: Key, theta: Theta, client: Client, n: int) -> Batch:
        return self.inner.sample_in(state["inner"], key, state["average"], client["inside"], n)

    def risk_in(self, state: Any, deployed: Theta, theta: Theta, client: Client) -> Array:
        return self.inner.risk_in(state["inner"], state["average"], theta, client["inside"])


@checks.explain_call
def slow(problem: Problem, rate: Any) -> Problem:
    """``problem`` with people who respond to an exponential average of what was deployed.

    Where f is linear in the model this is f <- (1 - rate) f + rate f(theta). The average starts at the first model.

    Args:
      rate: weight of the newest deployment, above 0 and at most 1: one number, or one per client.

    >>> import profl
    >>> case = slow(profl.cases.pricing(clients=2), rate=0.2)
    >>> case.name, bool(np.allclose(case.optimum, profl.cases.pricing(clients=2).optimum))
    ('pricing, slow (rate 0.2)', True)
    """
    check_problem(problem)
    rates = _one_per_client("rate", rate, problem.count)
    if not np.all((rates > 0) & (rates <= 1)):
        raise checks.InputError(f"rate must be above 0 and at most 1, got {rate!r}: 1 is at once")
    text = f"{rates[0]:g}" if np.all(rates == rates[0]) else f"{rates.min():g} to {rates.max():g}"
    return replace(
        problem,
        name=f"{problem.name}, slow (rate {text})",
        clients={"inside": problem.clients, "rate": rates},
        reaction=Slow(problem.reaction),
    )


# -- in turn -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Staggered(LongRun):
    """People in groups of equal size: each deployment reaches one group, in turn; the others keep their last model."""

    groups: int

    def start(self, theta: Theta, client: Client) -> Any:
        state = {"model": theta, "inner": self.inner.start(theta, client["inside"])}
        copies = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (self.groups, *jnp.shape(leaf))), state)
        return {"groups": copies, "next": jnp.int32(0)}

    def move(self, state: Any, key: Key, theta: Theta, client: Client) -> Any:
        now = state["next"]
        old = jax.tree.map(lambda leaf: leaf[now], state["groups"])
        new = {"model": theta, "inner": self.inner.move(old["inner"], key, theta, client["inside"])}
        groups = jax.tree.map(lambda leaf, row: leaf.at[now].set(row), state["groups"], new)
        return {"groups": groups, "next": (now + 1) % self.groups}

    def sample_in(self, state: Any, key: Key, theta: Theta, client: Client, n: int) -> Batch:
        keys = jax.vmap(lambda group: jax.random.fold_in(key, group))(jnp.arange(self.groups))
        rows = math.ceil(n / self.groups)
        drawn = jax.vmap(lambda k, s: self.inner.sample_in(s["inner"], k, s["model"], client["inside"], rows))
        batch = drawn(keys, state["groups"])  # groups take turns among the rows: any beginning of them is mixed
        return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1).reshape(-1, *leaf.shape[2:])[:n], batch)

    def risk_in(self, state: Any, deployed: Theta, theta: Theta, client: Client) -> Array:
        each = jax.vmap(lambda s: self.inner.risk_in(s["inner"], s["model"], theta, client["inside"]))
        return jnp.mean(each(state["groups"]))


@checks.explain_call
def staggered(problem: Problem, groups: int) -> Problem:
    """``problem`` with people in ``groups`` of equal size, of which each deployment reaches one, in turn.

    >>> import profl
    >>> staggered(profl.cases.pricing(clients=2), groups=3).name
    'pricing, 3 groups in turn'
    """
    check_problem(problem)
    if checks.positive_int("groups", groups) < 2:
        raise checks.InputError("groups must be 2 or more: one group answers at once")
    return replace(
        problem,
        name=f"{problem.name}, {groups} groups in turn",
        clients={"inside": problem.clients},
        reaction=Staggered(problem.reaction, groups),
    )


# -- by itself ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drifting(LongRun):
    """A number of every client changes with every deployment: by a trend, a season and a random walk.

    A client is ``{"inside": ..., "trend", "amplitude", "period", "walk", "seed"}``.
    """

    of: str

    drifts = True

    def start(self, theta: Theta, client: Client) -> Any:
        # the first deployment is at time 0
        return {
            "time": jnp.int32(-1),
            "walked": jnp.zeros_like(client["walk"]),
            "inner": self.inner.start(theta, self._moved(client, jnp.zeros_like(client["walk"]))),
        }

    def move(self, state: Any, key: Key, theta: Theta, client: Client) -> Any:
        time = state["time"] + 1
        walked = state["walked"] + jnp.where(time > 0, self._walk(client, time), 0.0)
        moved = {"time": time, "walked": walked}
        inside = self._at(moved, client)
        return {**moved, "inner": self.inner.move(state["inner"], key, theta, inside)}

    def sample_in(self, state: Any, key: Key, theta: Theta, client: Client, n: int) -> Batch:
        return self.inner.sample_in(state["inner"], key, theta, self._at(state, client), n)

    def risk_in(self, state: Any, deployed: Theta, theta: Theta, client: Client) -> Array:
        return self.inner.risk_in(state["inner"], deployed, theta, self._at(state, client))

    def at(self, clients: Client, time: float) -> tuple[Reaction, Client]:
        return self.inner.at(_clients_at(self, clients, float(time)), time)

    def _at(self, state: Any, client: Client) -> Client:
        time = state["time"]
        season = client["amplitude"] * jnp.sin(2 * jnp.pi * time / client["period"])
        return self._moved(client, client["trend"] * time + season + state["walked"])

    def _moved(self, client: Client, by: Array) -> Client:
        def add(path: Any, leaf: Array) -> Array:
            return leaf + by if path and getattr(path[-1], "key", None) == self.of else leaf

        return jax.tree_util.tree_map_with_path(add, client["inside"])

    def _walk(self, client: Client, time: Array) -> Array:
        key = jax.random.fold_in(random.seed_key(0), client["seed"])
        return client["walk"] * jax.random.normal(jax.random.fold_in(key, time), dtype=jnp.float32)


@partial(jax.jit, static_argnums=0)
def _clients_at(world: Drifting, clients: Client, time: Array) -> Client:
    """The clients inside at a time: the walk is drawn from a seed of its own, so its value at any time is known."""

    def one(client: Client) -> Client:
        nothing = jnp.zeros_like(client["walk"])
        walked = jax.lax.fori_loop(1, jnp.int32(time) + 1, lambda t, walked: walked + world._walk(client, t), nothing)
        return world._at({"time": time, "walked": walked}, client)

    return jax.vmap(one)(clients)


@checks.explain_call
def drifting(
    problem: Problem,
    *,
    trend: Any = 0.0,
    season: tuple[float, float] = (0.0, 1.0),
    walk: float = 0.0,
    of: str | None = None,
    seed: int = 0,
) -> Problem:
    """``problem`` with drift: a number of every client changes with every deployment, whatever is deployed.

    Time is the client's own number of deployments. ``problem.at(time)`` has the exact answers of a time, and a run is
    measured against the optimum of the time.

    Args:
      trend: what is added with every deployment: one number, or one per client.
      season: (amplitude, period in deployments) of a sine that is added.
      walk: standard deviation of a step of a random walk, the same for all clients.
      of: the name of the number among the clients' that moves; by default the one that the reaction says is its level
        (``mu0``, the demand at price zero, for ``pricing``).
      seed: of the walk.

    >>> import profl
    >>> falling = drifting(profl.cases.pricing(clients=2), trend=-0.003)
    >>> falling.name
    'pricing, drifting (trend -0.003)'
    >>> float(np.round(falling.at(100).optimum[0] - falling.at(0).optimum[0], 3))
    -0.1
    """
    check_problem(problem)
    if not isinstance(season, (tuple, list)) or len(season) != 2:
        raise checks.InputError(f"season must be (amplitude, period in deployments), got {checks.shown(season)}")
    amplitude, period = season
    checks.positive_int("seed", seed, least=0, most=checks.MOST_COUNT)
    field = problem.reaction.level if of is None else of
    fields = _fields(problem.clients)
    if not isinstance(field, str) or field not in fields:
        raise checks.InputError(
            f"of must name the number of a client that moves, one of {', '.join(sorted(fields))}; got {of!r}"
        )
    count = problem.count
    numbers = {
        "trend": _one_per_client("trend", trend, count),
        "amplitude": np.full(count, checks.real("season's amplitude", amplitude)),
        "period": np.full(count, checks.positive("season's period", period)),
        "walk": np.full(count, checks.real("walk", walk)),
    }
    parts = [
        *([f"trend {trend:g}" if np.ndim(trend) == 0 else "trends"] if np.any(numbers["trend"]) else []),
        *([f"season {amplitude:g} of {period:g}"] if amplitude else []),
        *([f"walk {walk:g}"] if walk else []),
    ]
    return replace(
        problem,
        name=f"{problem.name}, drifting ({', '.join(parts) or 'not'})",
        clients={"inside": problem.clients, **numbers, "seed": np.full(count, seed, np.int32)},
        reaction=Drifting(problem.reaction, field),
    )


# -- inside ------------------------------------------------------------------------------------------------------------


def _one_per_client(name: str, value: Any, count: int) -> np.ndarray:
    values = checks.numbers_of(name, value, f"a finite number, or one for each of {count} clients")
    if values.shape not in ((), (count,)) or not np.all(np.isfinite(values)):
        raise checks.InputError(f"{name} must be a finite number, or one for each of {count} clients, got {value!r}")
    return np.broadcast_to(values, (count,)).copy()


def _fields(clients: Any) -> set[str]:
    """The names of the clients' floating numbers."""
    leaves = jax.tree_util.tree_leaves_with_path(clients)
    return {
        path[-1].key
        for path, leaf in leaves
        if path and hasattr(path[-1], "key") and np.issubdtype(np.asarray(leaf).dtype, np.floating)
    }
