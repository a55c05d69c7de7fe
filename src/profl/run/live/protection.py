"""With ``privacy=`` whatever leaves a client is clipped and noised, or does not depend on its data.

    model, jacobian     entries of these kinds are clipped and noised; a model is then projected onto its space, which
                        tells nothing more; errors of a Jacobian are withheld
    other kinds         refused, before the run begins
    samples             the number requested, not the number received
    the rest            fixed: no loss, no share kept, no figures

Whether a round worked depends on the data as well. Where it did not (the client raised, its batch cannot be used, its
state went bad, it took too long), the client reports that it has not moved, noised like any report; its state stays
what it was, and its own log, ``logging.getLogger("profl.client")``, says why. What is not protected: when a report
comes, and that none comes from a node that is cut off or dies.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks
from profl.parts.privacy import Privacy, PrivacyAccount
from profl.run.live.batches import Overdue
from profl.run.plan import CompiledPlan, Settings, compile_for_settings
from profl.run.round import Work
from profl.run.run_history import absent_work
from profl.server.entries import Entry, Report
from profl.storage.atomic import atomic, check_plain
from profl.storage.checkpoints import Checkpoints
from profl.typing import Theta

log = logging.getLogger("profl.client")

PROTECTED = ("model", "jacobian")
"""The kinds of entries that can be clipped and noised."""
UNKNOWN = -1.0  # an error that a client does not state: no error is negative
FAILED = "failed; why is in its own log"
"""All that a server hears of a failure at a client with privacy."""


def check_privacy(plan: CompiledPlan, privacy: Privacy | None) -> None:
    """Refuse a method that reports what ``privacy`` cannot protect, or more often than it accounts for."""
    method = plan.settings.method
    if privacy is None:
        return
    if not isinstance(privacy, Privacy):
        raise checks.InputError(
            f"privacy must be a profl.parts.Privacy such as profl.parts.Privacy(noise=2.0), got {privacy!r}"
        )
    if method.sizes is not None:
        raise checks.InputError(
            f"with privacy the number of samples must not depend on the data, and {method.name} adapts it: leave "
            "samples=AdaptiveSamples(...) out of the method and give the run a number of samples"
        )
    other = sorted(name for name, entry in plan.report.items() if entry.kind not in PROTECTED)
    if method.exchanges or other:
        more = f"reports {', '.join(other)}" if other else "exchanges more than that"
        raise checks.InputError(
            f"privacy protects a model and a Jacobian once a round; {method.name} {more}: use pfl, pofl or profl with "
            "a learning_rate that is a number and no correction"
        )


def private_round(
    privacy: Privacy, plan: CompiledPlan, theta: Theta, state: Any, client: int, round_: int, work: Callable[[], Work]
) -> Work:
    """The protected report of the round that ``work()`` computes from ``state``, also if it fails."""
    try:
        result = work()
    except (KeyboardInterrupt, Overdue):
        raise
    except BaseException as error:  # a client may raise anything, SystemExit included
        why = f"{type(error).__name__}: {checks.words(error)}"
        return unchanged_report(privacy, plan, theta, state, client, round_, why)
    return finished_report(privacy, plan, theta, state, client, round_, result)


def finished_report(
    privacy: Privacy, plan: CompiledPlan, theta: Theta, state: Any, client: int, round_: int, work: Work
) -> Work:
    """The protected report of a client that made all its steps, from ``state``."""
    if not bool(work.finite):
        why = "NaN or Inf in its loss or its state"
        return unchanged_report(privacy, plan, theta, state, client, round_, why)
    return protect_report(privacy, plan, theta, work, client, round_)


def unchanged_report(
    privacy: Privacy, plan: CompiledPlan, theta: Theta, state: Any, client: int, round_: int, why: str
) -> Work:
    """The report of a client whose round failed: its model has not moved. ``why`` goes to its own log."""
    log.warning("round %d, client %d: %s; it reports that it has not moved", round_ + 1, client, why)
    return protect_report(privacy, plan, theta, absent_work(plan)._replace(states=state), client, round_)


def protect_report(privacy: Privacy, plan: CompiledPlan, theta: Theta, work: Work, client: int, round_: int) -> Work:
    """The report with noised model and Jacobian, and no other number that depends on the client's data."""
    noised = _add_noise(privacy, plan.settings, theta, work.reports, round_ * 2**20 + client)
    return protected_work(plan, work, noised, client)


def protected_work(plan: CompiledPlan, work: Work, noised: Report, client: int) -> Work:
    """The work with its ``noised`` report and nothing else that depends on the client's data."""
    nothing = jnp.full((), jnp.nan, float)
    return Work(
        states=work.states,  # stays at the client
        reports=noised,
        regret=nothing,
        info=dict.fromkeys(work.info, nothing),
        figures=dict.fromkeys(work.figures, nothing),
        samples=jnp.int32(plan.settings.local_steps * int(plan.population.counts[client])),
        answered=jax.device_put(True),
        finite=jax.device_put(True),
    )


def _add_noise(privacy: Privacy, settings: Settings, theta: Theta, report: Report, number: int) -> Report:
    """The report with all models and all Jacobians noised; the entries of a kind are clipped together, as one."""
    models = {name: entry.value for name, entry in report.items() if entry.kind == "model"}
    jacobians = {name: entry.value for name, entry in report.items() if is_jacobian_estimate(entry)}
    noised = privacy.model(dict.fromkeys(models, theta), models, number)
    values = {name: PROJECT(settings, model) for name, model in noised.items()}
    if jacobians:
        values |= privacy.jacobian(jacobians, number)
    withheld = {name: entry.value for name, entry in report.items() if name not in values}  # errors of the Jacobians
    values |= jax.tree.map(lambda leaf: jnp.full_like(leaf, UNKNOWN), withheld)
    return {name: entry.replace(values[name]) for name, entry in report.items()}


def is_jacobian_estimate(entry: Entry) -> bool:
    """Whether an entry is an estimate of kind jacobian, and not the error of one."""
    return entry.kind == "jacobian" and not entry.is_error


@contextmanager
def hide_errors(privacy: Privacy | None, client: int) -> Iterator[None]:
    """A context that, with privacy, replaces any error by ``FAILED``."""
    try:
        yield
    except Exception as error:
        if privacy is None:
            raise
        log.warning("client %d: %s: %s", client, type(error).__name__, checks.words(error))
        raise checks.InputError(FAILED) from None


class Account:
    """The number of reports that have left each client.

    Over Flower; ``train`` counts them in its log. Beside checkpoints it is a file of its own, written before a round
    begins: a round that is repeated after a crash counts twice, as it must.
    """

    def __init__(self, privacy: Privacy, plan: CompiledPlan, checkpoints: Checkpoints | None = None) -> None:
        self.privacy, self.share = privacy, any(is_jacobian_estimate(entry) for entry in plan.report.values())
        self.path = None if checkpoints is None else checkpoints.folder / "privacy.json"
        self.counts = np.zeros(plan.settings.clients, np.int64)
        if self.path is not None and checkpoints is not None and (self.path.exists() or checkpoints.numbers()):
            with checkpoints.closed_on_failure():
                self.counts = self._read()

    def charge(self, clients: Iterable[int]) -> None:
        """Count one more report of each of these clients."""
        self.charge_at_least(dict.fromkeys(clients, 0))

    def charge_at_least(self, counts: dict[int, int]) -> None:
        """Count one more report of each client, or the client's own count if that is larger, after a repeated round."""
        for client, count in counts.items():
            self.counts[client] = max(self.counts[client] + 1, count)
        if self.path is not None:
            with atomic(self.path, private=True) as temporary:
                temporary.write_text(json.dumps({"privacy": repr(self.privacy), "reports": self.counts.tolist()}))

    def spent(self) -> PrivacyAccount:
        """The privacy that the reports so far have spent, per client."""
        return self.privacy.account(self.counts.copy(), self.share)

    def _read(self) -> np.ndarray:
        """The stored counts; raises ``InputError`` if they cannot be read or belong to another run."""
        assert self.path is not None
        check_plain(self.path)
        try:
            account = json.loads(self.path.read_text(encoding="utf-8"))
            counts, settings = np.array(account["reports"], np.int64), str(account["privacy"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            raise checks.InputError(
                f"cannot tell from {self.path} how many reports have left the clients ({checks.words(error)}): "
                "begin a new run in another folder, and count what this one spent as well"
            ) from error
        if counts.shape != self.counts.shape or np.any(counts < 0) or settings != repr(self.privacy):
            raise checks.InputError(
                f"{self.path} is the account of {checks.words(settings)} with {counts.size} clients, "
                f"this run has {self.privacy!r} with {self.counts.size}: choose another folder"
            )
        return counts


def _project(settings: Settings, theta: Theta) -> Theta:
    return settings.functions.project(theta)


PROJECT = compile_for_settings(_project)
