"""How long a run is, who takes part, and what it is measured with: the same words in every engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from profl import checks, random
from profl.methods.stopping import StopWhenSettled
from profl.server import attacks
from profl.server.attacks import Attack
from profl.server.participation import SCHEMES
from profl.typing import Counts, Theta


@checks.explain_call
@dataclass(frozen=True, eq=False)
class RunConfig:
    """The settings of a run, which ``simulate``, ``train``, ``compare`` and a Flower federation take as arguments.

    Each word means the same everywhere. ``train`` and a federation are one run: they take ``seed``, a single one, in
    place of ``seeds``, and ask for ``min_reports=1`` by default.

    Args:
      rounds: how many there are.
      local_steps: R, steps per round; each deploys and draws fresh data.
      samples: n_i per deployment: one number, or one per client; the first one where the method adapts it.
      seeds: one run each; a seed fixes the start and every draw.
      participation: share of clients that take part in a round, in (0, 1].
      scheme: "uniform" (without replacement) or "weighted" (by alpha_i, with replacement).
      record_every: rounds between two records; the start and the last round are always recorded.
      initial: the model to start from, instead of the problem's own start.
      attack: what hostile clients do: a name of ``profl.server.ATTACKS`` or a ``profl.server.Attack``.
      hostile: which clients do it: a share of them, spread evenly, or their numbers.
      min_reports: a round with fewer usable reports changes nothing and may stop the run with ``profl.TooFewReports``,
        which holds what was done. Reports of clients of weight 0 are no use; a simulated round with no others changes
        nothing, and the run goes on.
      stop: when the run is done before its last round, by what the method expects of its model: a
        ``profl.StopWhenSettled``.

    >>> RunConfig(rounds=0)
    Traceback (most recent call last):
        ...
    profl.checks.InputError: rounds must be a whole number of at least 1, got 0
    """

    rounds: int
    local_steps: int = 5
    samples: Counts = 500
    seeds: Iterable[int] | int = range(10)
    participation: float = 1.0
    scheme: str = "uniform"
    record_every: int = 1
    initial: Theta | None = None
    attack: str | Attack | None = None
    hostile: float | Iterable[int] = 0.2
    min_reports: int = 0
    stop: StopWhenSettled | None = None

    def __post_init__(self) -> None:
        for name in ("rounds", "local_steps", "record_every"):
            checks.positive_int(name, getattr(self, name), most=checks.MOST_COUNT)
        if checks.numbers_of("samples", self.samples, "a whole number, or one per client").ndim == 0:
            checks.client_counts(self.samples, 1)
        checks.positive_int("min_reports", self.min_reports, least=0)
        checks.fraction("participation", self.participation)
        checks.one_of("scheme", self.scheme, SCHEMES)
        if self.attack is not None:
            attacks.get(self.attack)
        if self.stop is not None and not isinstance(self.stop, StopWhenSettled):
            raise checks.InputError(
                f"stop must be a profl.StopWhenSettled such as profl.StopWhenSettled(0.01), got {self.stop!r}"
            )
        object.__setattr__(self, "seeds", _seeds(self.seeds))


E = TypeVar("E")


def check_execution(execution: E) -> E:
    """The arguments of ``simulate`` or ``train`` that say how a run is kept and watched, with callbacks as a tuple."""
    stated: Any = execution
    for name in ("progress", "resume"):
        checks.flag(name, getattr(stated, name))
    if stated.checkpoint is not None:
        checks.path("checkpoint", stated.checkpoint)
    return stated._replace(callbacks=checks.functions("every callback", "of a record", stated.callbacks))


def one_seed(seed: int) -> int:
    """``seed`` where a run has a single one: a whole number of at least 0.

    >>> one_seed([0, 1])
    Traceback (most recent call last):
        ...
    profl.checks.InputError: seed must be one whole number, got [0, 1]
    """
    seeds = _seeds(seed)
    if len(seeds) > 1:
        raise checks.InputError(f"seed must be one whole number, got {seed!r}")
    return seeds[0]


def _seeds(seeds: Iterable[int] | int) -> tuple[int, ...]:
    values: Any = np.asarray(seeds) if hasattr(seeds, "__array__") else seeds
    if isinstance(values, np.ndarray):
        values = values.tolist()  # of NumPy, JAX or pandas
    numbers = tuple(values) if isinstance(values, Iterable) and not isinstance(values, str) else (values,)
    if not numbers:
        raise checks.InputError("seeds must hold at least one seed, got none; try seeds=range(10)")
    checked = tuple(checks.positive_int("every seed", seed, least=0) for seed in numbers)
    if max(checked) >= random.SEEDS:
        raise checks.InputError(f"every seed must be below 2**32, got {max(checked)}")
    return checked
