"""How the data answer a model: does anything move, at whom, and everywhere the same way?

f_hat is compared between theta + delta and theta - delta, in standard deviations of its noise (``chi_square``; the
bootstrap's, of all deployments of a step together). delta is so many natural units of the parameters. Where not
everybody is seen to react it grows fivefold, inside the model space: near theta = 0 a classifier tells nobody from
anybody, its natural unit is small, and a small step moves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

import jax
import numpy as np

from profl.run.diagnostics import groups
from profl.run.diagnostics.chi_square import deviations
from profl.run.diagnostics.family import NO_NOISE, estimate_and_noise
from profl.run.diagnostics.subject import CheckStopped, Deploy, Finding, Subject
from profl.run.live import batches
from profl.typing import Batch, Theta

PAIRS = 4  # of deployments, to see a reaction: with 5 goods, 20 squared changes
STEPS = (0.4, 2.0, 10.0, 50.0)  # natural units from theta, as long as nobody is seen to react
FIRST = 2  # number of the first of these deployments
LAST = FIRST + 2 * PAIRS * len(STEPS)  # of the first after them

REACTS = 4.0  # standard deviations from which on data react: by chance 3 in 100,000, in four steps 1 in 8,000
UNCLEAR = 2.5  # from here on, in the largest step that was tried, nobody can say: by chance 1 in 160
OPPOSITE = 4.0  # standard deviations that an entry of f must move by, up at one client and down at another

COMPARED = 20  # samples from which on two batches that are the same are no chance: labels alone may be


def draws(subject: Subject, batch: Batch, deploy: Deploy) -> Finding:
    """Whether two deployments of one model bring in different samples."""
    one = batch if deploy.memoryless is None else deploy.memoryless(subject.theta, 0)
    other = deploy(subject.theta, 1) if deploy.memoryless is None else deploy.memoryless(subject.theta, 1)
    if batches.rows(batch) < COMPARED or not _equal(one, other):
        return Finding("draws", "ok", "two deployments of one model bring in different samples")
    if deploy.memoryless is None:
        return Finding("draws", "warn", "two deployments of one model brought in the very same samples: are they new?")
    return Finding(
        "draws", "fail", "two draws with different keys are identical: the reaction must draw its samples from key"
    )


class Step(NamedTuple):
    """The reaction of one client to the pairs of models of one step."""

    deviations: float
    changes: np.ndarray  # of f_hat, in standard deviations of each, (PAIRS, p)
    batches: list[Batch]  # of the models, two after each other


def reaction_findings(subject: Subject, deploy: list[Deploy]) -> Iterator[Finding]:
    """The findings on the reaction and, where several clients react, on whether they do so the same way."""
    steps: list[list[Step]] = []
    models: list[Theta] | None = None
    largest_step = 0.0
    for level, size in enumerate(STEPS):
        before, models = models, subject.around(PAIRS, size)
        if before is not None and _equal(before, models):  # the model space has come to an end
            break
        try:
            steps.append([_measure(subject, one, models, FIRST + 2 * PAIRS * level) for one in deploy])
        except CheckStopped:
            if not level:
                raise
            break  # so far out nothing comes in that can be read
        largest_step = size
        if _strength(steps).min() > REACTS:
            break
    strength = _strength(steps)
    yield _reaction_finding(subject, deploy, strength, largest_step)
    yield from groups.group_findings(subject.world.family, [one.batches for clients in steps for one in clients])
    if np.sum(strength > REACTS) > 1:
        yield _compare_clients(deploy, steps)


def _measure(subject: Subject, deploy: Deploy, models: list[Theta], first: int) -> Step:
    """The changes of f_hat at one client between the two models of each pair."""
    brought = [deploy(model, first + i) for i, model in enumerate(models)]
    pairs = [estimate_and_noise(subject.world.family, batch) for batch in brought]
    f, noise = np.stack([one for one, _ in pairs]), np.concatenate([resampled for _, resampled in pairs])
    changes = (f[::2] - f[1::2]) / np.sqrt(np.maximum(2 * noise.var(axis=0), NO_NOISE))
    return Step(deviations(f, noise), changes, brought)


def _strength(steps: list[list[Step]]) -> np.ndarray:
    """The strongest reaction of each client over all steps, shape (clients,); without one, that of the largest step."""
    all_ = np.array([[one.deviations for one in clients] for clients in steps])
    return np.where(all_.max(axis=0) > REACTS, all_.max(axis=0), all_[-1])


def _reaction_finding(subject: Subject, deploy: list[Deploy], strength: np.ndarray, largest_step: float) -> Finding:
    """Whether the data react to the model, and at which clients."""
    where, moves = f"under models {largest_step:g} natural units from theta", strength > REACTS
    moving = f"the data move with the model{_strength_text(deploy, moves, strength)}"
    if moves.all():
        return Finding("reaction", "ok", f"{moving} {where}")
    parts = [moving] if moves.any() else []
    if np.any(unclear := (strength > UNCLEAR) & ~moves):
        parts.append(f"unclear{_strength_text(deploy, unclear, strength)}; try more samples")
    if np.any(still := strength <= UNCLEAR):
        why = _explain_no_reaction(subject, deploy, still, largest_step)
        parts.append(f"no reaction{_strength_text(deploy, still, strength)} {where}{why}")
    return Finding("reaction", "warn", "; ".join(parts))


def _strength_text(deploy: list[Deploy], which: np.ndarray, strength: np.ndarray) -> str:
    """Where and how strongly data react, as text."""
    chosen = np.flatnonzero(which)
    figures = ", ".join(f"{value:.0f}" if value > REACTS else f"{value:.1f}" for value in strength[chosen])
    where = "" if len(deploy) == 1 else f" at {_client_names([deploy[i] for i in chosen])}"
    return f"{where}: {figures} standard deviations"


def _client_names(deploy: list[Deploy]) -> str:
    """The numbers of the clients, as text."""
    return f"client{'s' if len(deploy) > 1 else ''} {', '.join(str(one.number) for one in deploy)}"


def _explain_no_reaction(subject: Subject, deploy: list[Deploy], still: np.ndarray, largest_step: float) -> str:
    """A possible reason why nothing reacts, as text, from draws under two distant models with the same key."""
    up, down = subject.around(1, largest_step)
    draws = [draw for i in np.flatnonzero(still) if (draw := deploy[i].memoryless) is not None]
    if not draws:
        return ": take more samples; where there is none, profl.pfl is enough"
    if all(_equal(draw(up, 0), draw(down, 0)) for draw in draws):
        return ": the samples do not depend on theta at all, and profl.pfl is enough"
    return f": samples do change with theta, but f of {type(subject.world.family).__name__} by no more than its noise"


def _compare_clients(deploy: list[Deploy], steps: list[list[Step]]) -> Finding:
    """Whether a pair of models moves an entry of f_hat up at one client and down at another."""
    for clients in steps:
        for (one, a), (other, b) in combinations(zip(deploy, clients, strict=True), 2):
            apart = (np.minimum(np.abs(a.changes), np.abs(b.changes)) > OPPOSITE) & (a.changes * b.changes < 0)
            if apart.any():
                entry = int(np.argmax(apart.sum(axis=0)))
                signs = ("up", "down") if a.changes[np.argmax(apart[:, entry]), entry] > 0 else ("down", "up")
                return Finding(
                    "clients",
                    "warn",
                    f"the same step moves f[{entry}] {signs[0]} at client {one.number} and {signs[1]} at client "
                    f"{other.number} ({int(apart.any(axis=0).sum())} of {apart.shape[1]} entries): one model for all "
                    "may suit nobody; compare with personal=True",
                )
    return Finding("clients", "ok", f"the same step moves f the same way at {_client_names(deploy)}")


def _equal(one: Batch, other: Batch) -> bool:
    """Whether two pytrees hold the same numbers."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)
