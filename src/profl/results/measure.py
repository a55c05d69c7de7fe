"""A ``Run`` from the trace of an engine, measured against the exact answers."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import numpy as np

from profl.methods.method import Method
from profl.methods.stopping import REASONS
from profl.problem.problem import Problem
from profl.results.motion import motion_notes
from profl.results.record import Distrusted, Run
from profl.server import rules
from profl.typing import Theta

REPORT_EXTRA_BYTES = 8  # beside what the method reports, a report carries its sample count and its loss


JACOBIAN = ("jacobian_error", "jacobian_off")  # figures that a run has under names of its own


class Trace(NamedTuple):
    """The raw result of an engine (seeds x records; models begin with the start, counts with the first record)."""

    theta: Theta
    totals: dict[str, Any]  # what was counted between two records, by name: ``profl.run.totals.Totals``
    figures: dict[str, Any]  # the method's own, at the records
    final: Any  # what each client had at the end, or None
    forecast: Any  # what the method expected at the records, a ``Forecast``, or None
    stopped: np.ndarray  # per seed, the round in which it ended early, or -1
    why: np.ndarray  # per seed, which of ``REASONS`` it had; 0 where it was given up
    dropped: np.ndarray | None  # mean share that the filter dropped, seeds x clients; None where there was none
    distrusted: dict[str, np.ndarray] = {}  # noqa: RUF012  since which round, -1 for not, seeds x clients, by reason
    posterior: Any = None  # what the method knows of the optimum at the end, a ``Posterior``, or None


class Layout(NamedTuple):
    """The sizes of a run."""

    seeds: tuple[int, ...]
    rounds: int
    local_steps: int
    record_every: int
    members: int  # clients behind each row of the engine; more than one when pooled
    clients: int
    turns: int  # of messages in a round
    sample_bytes: int
    report_bytes: int  # of one turn, up
    mail_bytes: int  # of one turn, down: the model and the mail
    first: int = 0  # the round of the first record: above 0 where a trace is a part of a run


def make_run(problem: Problem, method: Method, trace: Trace, layout: Layout, seconds: float) -> Run:
    """The run of a trace; means and totals are from its first record on."""
    totals = trace.totals
    later = np.arange(totals["deployments"].shape[1] + 1) * layout.record_every
    records = np.minimum(layout.first + later, layout.rounds)
    shape = (len(layout.seeds), records.size)
    exact = problem.exact
    answers = _answers(problem, trace.theta, records * layout.local_steps, shape)
    rounds_made = _total(totals["deployments"]) // layout.local_steps
    samples = _total(totals["samples"])
    unreported: Any = 0 if totals.get("unreported") is None else np.moveaxis(_total(totals["unreported"]), -1, 0)
    lost_deployments, lost_samples = np.broadcast_to(unreported, (2, *samples.shape))
    # A centralised learner gets the raw data; a client of a federation sends what its method reports.
    reported = layout.turns * layout.report_bytes + REPORT_EXTRA_BYTES
    up = samples * layout.sample_bytes if method.pooled else rounds_made * reported
    settled = tuple(int(end) + 1 if why else None for end, why in zip(trace.stopped, trace.why, strict=True))
    ends = np.array([layout.rounds if end is None else end for end in settled])[:, None]
    rounds_run = np.minimum(records, ends)  # rounds until each record; none after the end
    info = {name: _per_round(total, rounds_run) for name, total in totals["info"].items()}
    info |= {name: _after_start(value) for name, value in trace.figures.items() if name not in JACOBIAN}
    with np.errstate(invalid="ignore", divide="ignore"):
        regret = _total(totals["regret"]) / ((rounds_run - layout.first) * layout.local_steps)
    if exact and problem.reaction.drifts:  # it was counted against the optimum of the beginning
        regret = regret + problem.risk(problem.optimum)
        regret = regret - _mean_so_far(answers.optimum_risk, (records - layout.first) * layout.local_steps)
    classifies = exact and problem.reaction.accuracy is not None
    return Run(
        case=problem.name,
        algorithm=method.name,
        settings=_settings(method, layout),
        seeds=layout.seeds,
        rounds=records,
        theta=trace.theta,
        risk=answers.risk,
        excess=answers.risk - answers.optimum_risk,
        deployed_regret=regret if exact else np.full(shape, np.nan),
        to_optimum=answers.to_optimum,
        to_stable=answers.to_stable,
        accuracy=_measure(problem.accuracies, trace.theta, shape) if classifies else None,
        deployments=_total(totals["deployments"]) * layout.members + lost_deployments,
        samples=samples + lost_samples,
        bytes_up=up,
        bytes_down=rounds_made * layout.members * layout.turns * layout.mail_bytes,
        refused=_total(totals["refused"]),
        kept=np.where(np.arange(records.size) == 0, 1.0, info["kept"]) if "kept" in info else np.ones(shape),
        first_refused=_first_refused(totals["bad_round"], totals["bad_client"]),
        optimum=answers.optimum,
        stable=answers.stable,
        optimum_risk=float(answers.optimum_risk[-1]),
        stable_risk=float(answers.stable_risk[-1]),
        seconds=seconds,
        final=trace.final,
        jacobian_error=_root(trace.figures.get("jacobian_error")),
        jacobian_off=_root(trace.figures.get("jacobian_off")),
        info=info,
        expected_excess=None if trace.forecast is None else _after_start(trace.forecast.excess),
        expected_error=None if trace.forecast is None else _after_start(trace.forecast.error),
        settled=settled,
        stop_reason=tuple(REASONS.get(int(why)) for why in trace.why),
        dropped=None if trace.dropped is None else np.repeat(trace.dropped, layout.members, axis=1),
        notes=(
            *setup_notes(problem, layout.seeds),
            *outvoted_note(method, layout),
            *optimum_note(problem, answers),
            *motion_notes(
                problem, trace.theta, (answers.optimum, answers.stable), "learning_rate" in method.settings()
            ),
        ),
        distrusted=distrusted_clients(trace.distrusted, layout.seeds),
        posterior=trace.posterior,
    )


def distrusted_clients(since: dict[str, np.ndarray], seeds: tuple[int, ...]) -> tuple[Distrusted, ...]:
    """The clients that are distrusted at the end of a run, ordered by seed and client."""
    found = [
        Distrusted(seeds[seed], client, int(rounds[seed, client]) + 1, why)
        for why, rounds in since.items()
        for seed, client in np.argwhere(rounds[: len(seeds)] >= 0).tolist()
    ]
    return tuple(sorted(found))


def outvoted_note(method: Method, layout: Layout) -> tuple[str, ...]:
    """A sentence where a robust rule is in use and there are too few clients for it."""
    rule: Any = rules.get(method.aggregate)
    robust = isinstance(rule, rules.ReweightedMean) and not method.pooled and layout.clients > 1
    if not robust or rule.hostile * layout.clients >= 1:
        return ()
    return (
        f"with {layout.clients} clients nobody can be outvoted: the mean is in use, and one "
        f"hostile client moves it as far as it likes; from {math.ceil(1 / max(rule.hostile, 1e-9))} on it does not.",
    )


SENSITIVITIES = ("gamma", "eps", "elasticity")
"""What clients of the cases differ by in how strongly they answer."""


def setup_notes(problem: Problem, seeds: tuple[int, ...]) -> tuple[str, ...]:
    """Sentences on unusual arguments: clients that respond in opposite directions, seeds that are repeated."""
    notes = []
    clients = problem.clients if isinstance(problem.clients, dict) else {}
    for name in clients.keys() & set(SENSITIVITIES):
        values = np.asarray(clients[name], float)
        flipped = np.sum(np.any(np.sign(values) * np.sign(values.mean(0)) < 0, axis=tuple(range(1, values.ndim))))
        if flipped:
            notes.append(
                f"{flipped} of {len(values)} clients answer in the opposite direction ({name} has both signs): "
                "a smaller heterogeneity keeps them alike in kind."
            )
    if twice := sorted({seed for seed in seeds if seeds.count(seed) > 1}):
        notes.append(f"seeds {', '.join(map(str, twice))} stand there more than once: the spread is too small.")
    return tuple(notes)


BELOW = 1e-6  # of the risk's size, or
OF_GAP = 1e-3  # of the gap between PO and PS: less is the solver's own error
ERRORS = 4.0  # standard errors of a risk that was drawn


def optimum_note(problem: Problem, answers: Answers) -> tuple[str, ...]:
    """A sentence where the risk of a run is below that of the known optimum by more than its error."""
    if not problem.exact or not np.isfinite(answers.risk).any():
        return ()
    least = float(np.nanmin(answers.risk - answers.optimum_risk))
    size = max(1.0, float(np.max(np.abs(answers.optimum_risk))))
    gap = float(np.max(answers.stable_risk - answers.optimum_risk))
    if not least < -max(BELOW * size, OF_GAP * gap) or not least < -ERRORS * problem.risk_error(answers.optimum):
        return ()
    return (
        f"WARNING: the risk fell to {-least:.3g} below that of the stated optimum, which is a local one, then: excess, "
        "regret and distance count from there. Let the problem start elsewhere (initial=), or state a smaller model "
        "space (project=).",
    )


class Answers(NamedTuple):
    """The exact figures at the records; where the world drifts, those of the time."""

    risk: np.ndarray  # seeds x records, as are the distances
    to_optimum: np.ndarray
    to_stable: np.ndarray
    optimum_risk: np.ndarray  # records
    stable_risk: np.ndarray
    optimum: Theta | None  # at the last record
    stable: Theta | None


def _answers(problem: Problem, theta: Theta, times: np.ndarray, shape: tuple[int, int]) -> Answers:
    unknown = np.full(shape, np.nan)
    if not problem.exact:
        return Answers(unknown, unknown, unknown, unknown[0], unknown[0], None, None)
    if not problem.reaction.drifts:
        risk = _measure(problem.risks, theta, shape)
        low, high = (np.full(shape[1], problem.risk(point)) for point in (problem.optimum, problem.stable))
        near, far = (_distance(theta, point) for point in (problem.optimum, problem.stable))
        return Answers(risk, near, far, low, high, problem.optimum, problem.stable)
    columns = []
    for i, time in enumerate(times.tolist()):
        at = jax.tree.map(lambda leaf, i=i: leaf[:, i : i + 1], theta)
        columns.append(_answers(problem.at(time), at, times[:1], (shape[0], 1)))
    figures: Any = [np.concatenate(parts, axis=-1) for parts in zip(*(column[:5] for column in columns), strict=True)]
    return columns[-1]._replace(**dict(zip(Answers._fields[:5], figures, strict=True)))


def _mean_so_far(values: np.ndarray, records: np.ndarray) -> np.ndarray:
    """The mean over the deployments until each record, linear between records, shape (records,)."""
    areas = np.diff(records) * (values[1:] + values[:-1]) / 2
    return (np.concatenate([[0.0], np.cumsum(areas)]) - (values - values[0]) / 2) / np.maximum(records, 1)


def _root(squares: np.ndarray | None) -> np.ndarray | None:
    """The root of ``squares``, with NaN for the start; None where nothing was measured."""
    if squares is None or np.all(np.isnan(squares)):
        return None
    return _after_start(np.sqrt(squares))


def _per_round(total: np.ndarray, rounds_run: np.ndarray) -> np.ndarray:
    """Means over the rounds between two records, NaN at the start; after the end the last ones."""
    with np.errstate(invalid="ignore", divide="ignore"):
        means = _after_start(total / np.diff(rounds_run, axis=1))
    last = np.argmax(rounds_run == rounds_run[:, -1:], axis=1)[:, None]  # the record that the later ones repeat
    return np.take_along_axis(means, np.minimum(np.arange(rounds_run.shape[1]), last), axis=1)


def _after_start(values: np.ndarray) -> np.ndarray:
    """``values`` with NaN in front, for the record of the start."""
    return np.concatenate([np.full_like(values[:, :1], np.nan), values], axis=1)


def _settings(method: Method, layout: Layout) -> dict[str, Any]:
    own = {name: getattr(layout, name) for name in ("rounds", "local_steps", "clients")}
    return own | method.settings()


def _total(increments: np.ndarray) -> np.ndarray:
    """Running totals from zero; 64 bit, because a large run passes 2^31 samples."""
    wide = increments.astype(np.float64 if increments.dtype.kind == "f" else np.int64)
    return np.concatenate([np.zeros_like(wide[:, :1]), np.cumsum(wide, axis=1)], axis=1)


def _measure(function: Any, theta: Theta, shape: tuple[int, int]) -> np.ndarray:
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), theta)
    return function(flat).reshape(shape)


def _distance(theta: Theta, point: Theta) -> np.ndarray:
    squares = [
        ((np.asarray(a, np.float64) - b) ** 2).reshape(*a.shape[:2], -1).sum(-1)
        for a, b in zip(jax.tree.leaves(theta), jax.tree.leaves(point), strict=True)
    ]
    return np.sqrt(np.sum(squares, axis=0))


def _first_refused(bad_round: np.ndarray, bad_client: np.ndarray) -> tuple[tuple[int, int] | None, ...]:
    first: list[tuple[int, int] | None] = []
    for rounds, clients in zip(bad_round, bad_client, strict=True):
        hits = np.flatnonzero(rounds >= 0)
        first.append((int(rounds[hits[0]]) + 1, int(clients[hits[0]])) if hits.size else None)
    return tuple(first)
