"""``simulate`` with a checkpoint after every round: the compiled program runs one round at a time.

Between two rounds everything that the next one needs is on the host and then on disk. Records are thinned at the end,
so that what is recorded does not decide how much a crash can cost.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks
from profl.engines import simulate as fast
from profl.engines.plan import Plan
from profl.engines.spread import spread_out
from profl.progress import progress_bar
from profl.results.record import Trace
from profl.storage.checkpoints import Checkpoints

_ENDLESS = 2**30


def run_saved(
    plan: Plan, title: str, progress: bool, saved: Checkpoints, client_chunk: int | None = None
) -> tuple[Trace, np.ndarray]:
    """The trace, and the round in which each seed was stopped (-1: it was not)."""
    # one round per call: how many there are in all must not be part of the compiled code
    settings, population = plan.settings._replace(record_every=1, rounds=_ENDLESS), plan.population
    rounds = plan.settings.rounds
    spread = spread_out(settings, population, plan.models, client_chunk)
    carry = fast._start(settings, population, plan.models)
    history = _before_the_first(plan)
    done = 0
    if (found := saved.newest(carry, history)) is not None:
        if found.round > rounds:
            raise checks.InputError(f"{saved.folder} holds round {found.round}, asked for {rounds} rounds")
        done, carry, history = found.round, jax.tree.map(jnp.asarray, found.state), found.history
    with progress_bar(title, rounds, progress) as advance:
        advance(done)
        while done < rounds and not np.any(np.asarray(carry.stopped) >= 0):
            carry, out = fast._segment(settings, spread, 1, carry, population, plan.roots, done)
            history = jax.tree.map(lambda old, new: np.concatenate([old, new], axis=1), history, fast._on_host(out))
            done += 1
            saved.save(done, carry, history)
            advance(1)
    models, tallies = _thin(history, plan.settings.record_every)
    final = fast._final(settings, carry.states) if settings.recipe.share else None
    return Trace(theta=models, **tallies._asdict(), final=final), np.asarray(carry.stopped)


def _before_the_first(plan: Plan) -> tuple[Any, Any]:
    """The models of round 0; and a tally for it that says nothing, so that both have one entry per round."""
    seeds = len(plan.seeds)
    models = jax.tree.map(lambda leaf: np.asarray(leaf)[:, None], plan.models)
    _, nothing = fast._on_host((models, fast._empty_tally()))
    return models, jax.tree.map(lambda leaf: np.broadcast_to(leaf, (seeds, 1)), nothing)


def _thin(history: tuple[Any, Any], every: int) -> tuple[Any, Any]:
    """Models of every ``every``-th round and the last, and what was counted between two of them."""
    models, tallies = history
    rounds = tallies.regret.shape[1] - 1
    ends = [*range(every, rounds, every), rounds]
    parts = list(zip([0, *ends[:-1]], ends, strict=True))

    def total(counts: np.ndarray) -> np.ndarray:
        return np.stack([counts[:, a + 1 : b + 1].sum(axis=1) for a, b in parts], axis=1)

    def first(values: np.ndarray) -> np.ndarray:
        """In each part, the value of the first round that refused a report."""
        columns = []
        for a, b in parts:
            bad = tallies.bad_round[:, a + 1 : b + 1] >= 0
            own = np.take_along_axis(values[:, a + 1 : b + 1], np.argmax(bad, axis=1)[:, None], axis=1)[:, 0]
            columns.append(np.where(bad.any(axis=1), own, -1))
        return np.stack(columns, axis=1)

    sums = {name: total(getattr(tallies, name)) for name in ("regret", "deployments", "samples", "refused", "kept")}
    firsts = {name: first(getattr(tallies, name)) for name in ("bad_round", "bad_client")}
    lasts = {name: getattr(tallies, name)[:, ends] for name in ("jacobian_error", "jacobian_off")}
    kept = fast.Tally(**sums, **firsts, **lasts)  # type: ignore[arg-type]
    return jax.tree.map(lambda leaf: leaf[:, [0, *ends]], models), kept
