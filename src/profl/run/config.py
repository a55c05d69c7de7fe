"""How long a run is, who takes part, and what it is measured with: the same words in every engine."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np

from profl import checks, random
from profl.methods.stopping import Settled
from profl.server import attacks
from profl.server.participation import SCHEMES
from profl.typing import Theta

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Schedule:
    """The settings that ``simulate``, ``train`` and a Flower federation share; all of them take these names.

    Args:
      rounds: how many there are.
      local_steps: R, steps per round; each deploys and draws fresh data.
      samples: n_i per deployment: one number, or one per client; the first one where the method adapts it.
      seeds: one run each; a seed fixes the start and every draw.
      participation: share of clients asked per round, in (0, 1].
      scheme: "uniform" (without replacement) or "weighted" (by alpha_i, with replacement).
      record_every: rounds between two records; the start and the last round are always recorded.
      initial: the model to start from, instead of the problem's own start.
      attack: what hostile clients do: a name of ``profl.ATTACKS`` or a ``profl.Attack``.
      hostile: which clients do it: a share of them, spread evenly, or their numbers.
      min_reports: a round with fewer usable reports changes nothing and may stop the run with ``profl.TooFewReports``,
        which holds what was done. Reports of clients of weight 0 are no use; a simulated round with no others changes
        nothing, and the run goes on.
      stop: when the run is done before its last round, by what the method expects of its model: a ``profl.Settled``.

    >>> Schedule(rounds=0)
    Traceback (most recent call last):
        ...
    profl.checks.InputError: rounds must be a whole number of at least 1, got 0
    """

    rounds: int
    local_steps: int = 5
    samples: Any = 500
    seeds: Iterable[int] | int = range(10)
    participation: float = 1.0
    scheme: str = "uniform"
    record_every: int = 1
    initial: Theta | None = None
    attack: Any = None
    hostile: Any = 0.2
    min_reports: int = 0
    stop: Settled | None = None

    def __post_init__(self) -> None:
        for name in ("rounds", "local_steps", "record_every"):
            checks.positive_int(name, getattr(self, name))
        checks.positive_int("min_reports", self.min_reports, least=0)
        checks.fraction("participation", self.participation)
        checks.one_of("scheme", self.scheme, SCHEMES)
        if self.attack is not None:
            attacks.get(self.attack)
        if self.stop is not None and not isinstance(self.stop, Settled):
            raise checks.InputError(f"stop must be a profl.Settled such as profl.Settled(0.01), got {self.stop!r}")
        object.__setattr__(self, "seeds", _seeds(self.seeds))


def _seeds(seeds: Iterable[int] | int) -> tuple[int, ...]:
    given: Any = np.asarray(seeds) if hasattr(seeds, "__array__") else seeds
    if isinstance(given, np.ndarray):
        given = given.tolist()  # of NumPy, JAX or pandas
    numbers = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    if not numbers:
        raise checks.InputError("seeds must hold at least one seed, got none; try seeds=range(10)")
    checked = tuple(checks.positive_int("every seed", seed, least=0) for seed in numbers)
    if max(checked) >= random.SEEDS:
        raise checks.InputError(f"every seed must be below 2**32, got {max(checked)}")
    return checked


def scheduled(**changed: Any) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """A function that takes ``schedule: Schedule`` becomes one that takes the schedule's names as arguments as well.

    ``changed`` gives other defaults, or a name in place of another (``seed=("seeds", 0)``). The arguments are listed in
    one place, ``Schedule``; ``help`` and editors see them all.
    """

    def decorate(function: Callable[..., T]) -> Callable[..., T]:
        own = inspect.signature(function)
        parameters = _parameters(changed)

        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> T:
            if "schedule" in named:
                if both := sorted(set(named) & set(parameters)):
                    raise checks.InputError(f"give either schedule or {', '.join(both)}, not both")
                return function(*arguments, **named)
            settings = {}
            for name, (parameter, field) in parameters.items():
                if name in named:
                    settings[field] = named.pop(name)
                elif parameter.default is not parameter.empty:
                    settings[field] = parameter.default
                else:
                    raise TypeError(f"{function.__name__}() needs the argument {name!r}")
            return function(*arguments, schedule=Schedule(**settings), **named)

        kept = [parameter for name, parameter in own.parameters.items() if name != "schedule"]
        first = [p for p in kept if p.kind is not p.KEYWORD_ONLY]
        rest = [p for p in kept if p.kind is p.KEYWORD_ONLY]
        together = [*first, *(parameter for parameter, _ in parameters.values()), *rest]
        call.__signature__ = own.replace(parameters=together)  # type: ignore[attr-defined]
        return call

    return decorate


def _parameters(changed: dict[str, Any]) -> dict[str, tuple[inspect.Parameter, str]]:
    """name -> (the parameter, the field of the schedule that it sets), in the order of the schedule."""
    renamed = {value[0]: (name, value[1]) for name, value in changed.items() if isinstance(value, tuple)}
    found = {}
    for field in fields(Schedule):
        name, default = renamed.get(field.name, (field.name, changed.get(field.name, field.default)))
        missing = inspect.Parameter.empty if field.name == "rounds" else default
        found[name] = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=missing), field.name
    return found
