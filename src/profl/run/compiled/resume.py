"""``simulate`` with a checkpoint after every round: the compiled program runs one round at a time.

Between two rounds everything that the next one needs is on the host and then on disk. Records are thinned at the end,
so that what is recorded does not decide how much a crash can cost.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks
from profl.interrupts import deferred_interrupts
from profl.progress import progress_bar
from profl.results.callbacks import Watch
from profl.results.measure import Trace
from profl.run.compiled.placement import place
from profl.run.compiled.scan import Records, Span, ended, filled, over, records_on_host, segment, start, trace
from profl.run.plan import Plan
from profl.run.round import Carry
from profl.run.tally import Tally
from profl.storage.checkpoints import Checkpoints


def run_saved(
    plan: Plan, title: str, progress: bool, saved: Checkpoints, client_chunk: int | None, watch: Watch
) -> Trace:
    """The trace of all seeds, as far as the run went: Ctrl-C and callbacks end it between two rounds."""
    settings, population = plan.settings, plan.population
    rounds, every = settings.rounds, settings.record_every
    placement = place(settings, population, plan.models, client_chunk)
    carry = start(settings, population, plan.models)
    once = partial(segment, settings, placement, 1)
    shapes = jax.eval_shape(once, carry, population, plan.roots, Span(0, 1, 1, rounds))[1]
    history: list[Records] = []  # one item a round
    done = 0
    if (found := saved.newest(carry, {"rounds": _one(shapes)})) is not None:
        if found.round > rounds:
            raise checks.InputError(f"{saved.folder} holds round {found.round}, asked for {rounds} rounds")
        done, carry, history = found.round, jax.tree.map(jnp.asarray, found.state), found.lists["rounds"]
    with progress_bar(title, rounds, progress, compiles=True) as advance, deferred_interrupts() as pressed:
        advance(done)
        seen = done - done % every
        if seen and watch.active:  # what an earlier process counted
            watch.record(_part(plan, history, 0, seen, carry), 0, call=False)
        while done < rounds and not over(carry) and not watch.stopped:
            carry, out = segment(settings, placement, 1, carry, population, plan.roots, Span(done, done + 1, 1, rounds))
            history.append(records_on_host(out))
            done += 1
            saved.save(done, carry, {"rounds": history})
            advance(1)
            if watch.active and (done % every == 0 or done == rounds):
                watch.record(_part(plan, history, seen, done, carry), seen)
                seen = done
            if pressed():
                watch.interrupt()
    return trace(plan.models, _thin(filled(_joined(history), rounds, carry), every), carry, ended(plan, carry))


def _part(plan: Plan, history: list[Records], first: int, last: int, carry: Carry) -> Trace:
    """The trace of the rounds from ``first`` to ``last``."""
    models = plan.models if first == 0 else jax.tree.map(lambda leaf: leaf[:, -1], history[first - 1].theta)
    return trace(models, _thin(_joined(history[first:last]), plan.settings.record_every), carry)


def _joined(history: list[Records]) -> Records:
    return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *history)


def _one(shapes: Records) -> Records:
    """What the records of a round look like."""
    return records_on_host(jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes))


def _thin(history: Records, every: int) -> Records:
    """Models of every ``every``-th round and the last, and what was counted between two of them."""
    models, tally, figures, expected = history
    rounds = tally.regret.shape[1]
    ends = [*range(every, rounds, every), rounds]
    parts = list(zip([0, *ends[:-1]], ends, strict=True))
    lasts = [end - 1 for end in ends]

    def total(counts: np.ndarray) -> np.ndarray:
        return np.stack([counts[:, a:b].sum(axis=1) for a, b in parts], axis=1)

    def first(values: np.ndarray) -> np.ndarray:
        """In each part, the value of the first round that refused a report."""
        columns = []
        for a, b in parts:
            bad = tally.bad_round[:, a:b] >= 0
            own = np.take_along_axis(values[:, a:b], np.argmax(bad, axis=1)[:, None], axis=1)[:, 0]
            columns.append(np.where(bad.any(axis=1), own, -1))
        return np.stack(columns, axis=1)

    firsts: dict[str, Any] = {name: first(getattr(tally, name)) for name in ("bad_round", "bad_client")}
    latest = jax.tree.map(lambda leaf: leaf[:, lasts], tally.latest)
    sums: dict[str, Any] = jax.tree.map(
        total, {name: v for name, v in tally._asdict().items() if name not in (*firsts, "latest")}
    )
    kept = Tally(**sums, **firsts, latest=latest)
    models, figures, expected = jax.tree.map(lambda leaf: leaf[:, lasts], (models, figures, expected))
    return Records(models, kept, figures, expected)
