"""``simulate`` with a checkpoint after every round: the compiled program runs one round at a time.

Between two rounds everything that the next one needs is on the host and then on disk. Records are thinned at the end,
so that what is recorded does not decide how much a crash can cost. Of several processes the first one writes, and all
read the same folder; another number of them can go on.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np

from profl import checks
from profl.interrupts import deferred_interrupts
from profl.progress import progress_bar
from profl.results.callbacks import Watch
from profl.results.measure import Trace
from profl.run.compiled import processes
from profl.run.compiled.placement import place
from profl.run.compiled.scan import (
    Records,
    Span,
    ends_of_seeds,
    final_outputs_on_host,
    initial_carries,
    is_over,
    lay_out,
    make_trace,
    pad_records,
    records_to_host,
    segment,
)
from profl.run.plan import CompiledPlan
from profl.run.round import Carry, distrusted_on_host, posterior_on_host
from profl.run.totals import Totals, zero_counts
from profl.storage.checkpoints import Checkpoints


def run_with_checkpoints(
    plan: CompiledPlan, title: str, progress: bool, saved: Checkpoints, client_chunk: int | None, watch: Watch
) -> Trace:
    """The trace of all seeds; Ctrl-C and callbacks end the run between two rounds."""
    settings, population = plan.settings, plan.population
    rounds, every = settings.rounds, settings.record_every
    placement = place(settings, population, plan.models, client_chunk)
    carry = initial_carries(settings, population, plan.models)
    one_round = partial(segment, settings, placement, 1)
    shapes = jax.eval_shape(one_round, carry, population, plan.roots, Span(0, 1, 1, rounds))[1]
    history: list[Records] = []  # one item a round
    rounds_done = 0
    if (newest := saved.newest(carry, {"rounds": _round_shapes(shapes)})) is not None:
        if newest.round > rounds:
            raise checks.InputError(f"{saved.folder} holds round {newest.round}, asked for {rounds} rounds")
        rounds_done, carry = newest.round, jax.device_put(newest.state)
        history = [_unknown(shapes) if one is None else one for one in newest.lists["rounds"]]
    processes.check_same_start(rounds_done, saved.folder)
    carry, population, roots = lay_out(plan, placement, carry, plan.roots)
    ends = ends_of_seeds(carry, len(plan.seeds))
    with progress_bar(title, rounds, progress, compiles=True) as advance, deferred_interrupts() as pressed:
        advance(rounds_done)
        recorded = rounds_done - rounds_done % every
        if recorded and watch.active:  # what an earlier process counted
            watch.record(_trace_between(plan, history, 0, recorded, ends), 0, call=False)
        while rounds_done < rounds and not is_over(ends) and not watch.stopped:
            carry, out = segment(
                settings, placement, 1, carry, population, roots, Span(rounds_done, rounds_done + 1, 1, rounds)
            )
            history.append(records_to_host(out))
            ends, whole = ends_of_seeds(carry, len(plan.seeds)), processes.gathered(carry)
            rounds_done += 1
            if processes.is_first():
                saved.save(rounds_done, whole, {"rounds": history})
            advance(1)
            if watch.active and (rounds_done % every == 0 or rounds_done == rounds):
                watch.record(_trace_between(plan, history, recorded, rounds_done, ends), recorded)
                recorded = rounds_done
            processes.agree_to_go_on(watch, pressed())
    whole = processes.gathered(carry)
    return make_trace(
        plan.models,
        _thin_records(pad_records(_concatenate(history), rounds, ends), every),
        ends,
        final_outputs_on_host(plan, whole),
        distrusted_on_host(settings, whole.server),
        posterior_on_host(settings, whole.server),
    )


def _trace_between(plan: CompiledPlan, history: list[Records], first: int, last: int, carry: Carry) -> Trace:
    """The trace of the rounds from ``first`` to ``last``."""
    models = plan.models if first == 0 else jax.tree.map(lambda leaf: leaf[:, -1], history[first - 1].theta)
    return make_trace(models, _thin_records(_concatenate(history[first:last]), plan.settings.record_every), carry)


def _concatenate(history: list[Records]) -> Records:
    """The records of several rounds as one."""
    return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *history)


def _round_shapes(shapes: Records) -> Records:
    """Records of one round filled with zeros, for their shapes."""
    return records_to_host(jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes))


def _unknown(shapes: Records) -> Records:
    """Records of one round of which nothing is known any more: NaN, and counts of zero."""
    zeros = _round_shapes(shapes)
    unknown: Records = jax.tree.map(lambda leaf: leaf + np.nan if leaf.dtype.kind == "f" else leaf, zeros)
    return unknown._replace(tally=zero_counts(unknown.tally))


def _thin_records(history: Records, every: int) -> Records:
    """The records of every ``every``-th round and the last, with totals summed between two of them."""
    models, totals_by_round, figures, expected = history
    rounds = totals_by_round.regret.shape[1]
    ends = [*range(every, rounds, every), rounds]
    parts = list(zip([0, *ends[:-1]], ends, strict=True))
    lasts = [end - 1 for end in ends]

    def total(counts: np.ndarray) -> np.ndarray:
        return np.stack([counts[:, a:b].sum(axis=1) for a, b in parts], axis=1)

    def first(values: np.ndarray) -> np.ndarray:
        """In each part, the value of the first round that refused a report."""
        columns = []
        for a, b in parts:
            bad = totals_by_round.bad_round[:, a:b] >= 0
            first_values = np.take_along_axis(values[:, a:b], np.argmax(bad, axis=1)[:, None], axis=1)[:, 0]
            columns.append(np.where(bad.any(axis=1), first_values, -1))
        return np.stack(columns, axis=1)

    firsts: dict[str, Any] = {name: first(getattr(totals_by_round, name)) for name in ("bad_round", "bad_client")}
    latest = jax.tree.map(lambda leaf: leaf[:, lasts], totals_by_round.latest)
    sums: dict[str, Any] = jax.tree.map(
        total, {name: v for name, v in totals_by_round._asdict().items() if name not in (*firsts, "latest")}
    )
    totals = Totals(**sums, **firsts, latest=latest)
    models, figures, expected = jax.tree.map(lambda leaf: leaf[:, lasts], (models, figures, expected))
    return Records(models, totals, figures, expected)
