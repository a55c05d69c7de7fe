"""What server and clients of a federation must agree on; and how both read it from a Flower run's settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from profl import checks, trees
from profl.algorithms import get as get_algorithm
from profl.algorithms.base import Algorithm
from profl.cases import get as get_case
from profl.client.privacy import Privacy
from profl.client.step import State
from profl.engines.fingerprint import fingerprint
from profl.engines.plan import Plan, batch_shape, first_states, make_plan
from profl.objects import named
from profl.problem.live import LiveProblem
from profl.problem.problem import Problem
from profl.problem.reaction import SampledReaction
from profl.typing import Batch, Theta


@dataclass(frozen=True, eq=False)
class Federation:
    """A problem, an algorithm, and the settings of ``profl.train`` that both sides need.

    ``timeout`` is what one deployment may take at a client.
    """

    problem: Problem | LiveProblem
    algorithm: Algorithm
    clients: int
    rounds: int
    local_steps: int = 5
    samples: Any = 500
    seed: int = 0
    participation: float = 1.0
    scheme: str = "uniform"
    record_every: int = 1
    initial: Theta | None = None
    min_reports: int = 1
    timeout: float = 60.0
    privacy: Privacy | None = None

    def __post_init__(self) -> None:
        checks.positive_int("clients", self.clients)
        checks.positive("timeout", self.timeout)
        checks.positive_int("min_reports", self.min_reports)
        if isinstance(self.algorithm, Algorithm) and self.algorithm.pooled:
            raise checks.InputError(f"{self.algorithm.name} pools raw data in one place: it is no federation")

    @cached_property
    def world(self) -> Problem:
        """The problem, with its exact answers where it has them."""
        found = self.problem.problem(self.clients) if isinstance(self.problem, LiveProblem) else self.problem
        if not isinstance(found, Problem) or found.count != self.clients:
            raise checks.InputError(
                f"a federation of {self.clients} clients needs a problem with as many, got {found!r:.80}"
            )
        return found

    @cached_property
    def plan(self) -> Plan:
        """Laid out without the exact answers: every message starts a new process, which need not compile them."""
        reaction = self.world.reaction
        bare = replace(self.world, reaction=SampledReaction(reaction.sample, reaction.parameters))
        return make_plan(
            bare,
            self.algorithm,
            rounds=self.rounds,
            local_steps=self.local_steps,
            samples=self.samples,
            seeds=self.seed,
            participation=self.participation,
            scheme=self.scheme,
            record_every=self.record_every,
            initial=self.initial,
            min_reports=self.min_reports,
        )

    @cached_property
    def fingerprint(self) -> dict[str, str]:
        """What the run is; two sides with other words must not work together."""
        return {**fingerprint("flower", self.world, self.algorithm, self.plan), "privacy": repr(self.privacy)}

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.fingerprint, sort_keys=True).encode()).hexdigest()[:16]

    @cached_property
    def like(self) -> Batch:
        """The shapes of a batch."""
        return batch_shape(self.plan.settings, self.plan.population, self.start)

    @property
    def start(self) -> Theta:
        return trees.take(self.plan.models, 0)

    def empty_state(self) -> State:
        """The state of a client before its first step."""
        return self._empty

    @cached_property
    def _empty(self) -> State:
        return trees.take(first_states(self.plan.settings, self.plan.population, self.start), 0)


def from_config(config: Mapping[str, Any]) -> Federation:
    """The federation that a Flower run's settings describe.

    Either ``federation = "module:name"``, an object of the app's own; or ``case`` and ``algorithm`` by name with
    ``clients``, ``rounds``, ``local-steps``, ``samples``, ``seed``, ``participation``, ``learning-rate``, ``share``.
    """
    return _from_items(tuple(sorted(config.items())))


@lru_cache(maxsize=8)
def _from_items(items: tuple[tuple[str, Any], ...]) -> Federation:
    config = dict(items)
    if "federation" in config:
        found = named(str(config["federation"]))
        if not isinstance(found, Federation):
            raise checks.InputError(f"{config['federation']} must be a Federation, got {type(found).__name__}")
        rounds = config.get("rounds")
        return found if rounds is None else replace(found, rounds=int(rounds))
    if "case" not in config:
        raise checks.InputError("the run's settings must name a federation ('module:name') or a case")
    options: dict[str, Any] = {}
    if "learning-rate" in config:
        options["learning_rate"] = float(config["learning-rate"])
    if config.get("share"):
        options["share"] = int(config["share"])
    clients = int(config["clients"])
    return Federation(
        problem=get_case(str(config["case"]))(clients=clients),
        algorithm=get_algorithm(str(config.get("algorithm", "profl")))(**options),
        clients=clients,
        rounds=int(config["rounds"]),
        local_steps=int(config.get("local-steps", 5)),
        samples=int(config.get("samples", 500)),
        seed=int(config.get("seed", 0)),
        participation=float(config.get("participation", 1.0)),
    )
