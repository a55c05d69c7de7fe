"""What server and clients of a federation must agree on; and how both read it from a Flower run's settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any

import jax.numpy as jnp
import numpy as np

from profl import checks, trees
from profl.cases import get as get_case
from profl.methods import get as get_algorithm
from profl.methods.method import Method
from profl.methods.stopping import StopWhenSettled
from profl.objects import import_object
from profl.parts.privacy import Privacy
from profl.problem.live import LiveProblem
from profl.problem.problem import Problem
from profl.problem.reaction import Unmeasured
from profl.run.config import RunConfig, one_seed
from profl.run.fingerprint import fingerprint
from profl.run.live.protection import check_privacy
from profl.run.plan import CompiledPlan, batch_shape, compiled_first_state, make_plan
from profl.run.run_history import figure_names
from profl.server.attacks import Attack
from profl.typing import Batch, Counts, Theta

MAX_EXCESS = 100  # a client may state this many times the samples that were requested


class Federation:
    """A problem, a method, and the settings of a run that both sides need.

    Args:
      clients: how many there are.
      rounds, local_steps, samples, participation, scheme, record_every, initial, attack, hostile, min_reports, stop:
        see ``profl.RunConfig``.
      seed: it fixes the start and every draw.
      timeout: seconds that one deployment may take at a client.
      privacy: clip and noise every report at its client (``profl.parts.Privacy``).
    """

    def __init__(
        self,
        problem: Problem | LiveProblem,
        method: Method,
        clients: int,
        *,
        rounds: int,
        local_steps: int = 5,
        samples: Counts = 500,
        seed: int = 0,
        participation: float = 1.0,
        scheme: str = "uniform",
        record_every: int = 1,
        initial: Theta | None = None,
        attack: str | Attack | None = None,
        hostile: float | Iterable[int] = 0.2,
        min_reports: int = 1,
        stop: StopWhenSettled | None = None,
        timeout: float = 60.0,
        privacy: Privacy | None = None,
    ) -> None:
        config = RunConfig(
            rounds,
            local_steps,
            samples,
            one_seed(seed),
            participation,
            scheme,
            record_every,
            initial,
            attack,
            hostile,
            min_reports,
            stop,
        )
        checks.positive_int("clients", clients)
        checks.positive("timeout", timeout)
        checks.positive_int("min_reports", min_reports)
        if isinstance(method, Method) and method.pooled:
            raise checks.InputError(f"{method.name} pools raw data in one place: it is no federation")
        self.problem, self.method, self.clients, self.config = problem, method, clients, config
        self.timeout, self.privacy = timeout, privacy

    def with_rounds(self, rounds: int) -> Federation:
        """The same federation for another number of rounds."""
        other = object.__new__(Federation)
        names = ("problem", "method", "clients", "timeout", "privacy")
        other.__dict__.update({name: getattr(self, name) for name in names})
        other.config = replace(self.config, rounds=rounds)
        return other

    @cached_property
    def world(self) -> Problem:
        """The problem, with its exact answers where it has them."""
        problem = self.problem.problem(self.clients) if isinstance(self.problem, LiveProblem) else self.problem
        if not isinstance(problem, Problem) or problem.count != self.clients:
            raise checks.InputError(
                f"a federation of {self.clients} clients needs a problem with as many, got {problem!r:.80}"
            )
        return problem

    @cached_property
    def plan(self) -> CompiledPlan:
        """The plan without the optimum, which every message would have to search again in its own process.

        A client then reports the exact risk of what it deployed as its regret, if the problem is exact; the server
        subtracts the risk at the optimum (``floors``).
        """
        bare = replace(self.world, reaction=Unmeasured(self.world.reaction))
        plan = make_plan(bare, self.method, self.config)
        check_privacy(plan, self.privacy)
        if not self.world.exact:
            return plan
        settings = plan.settings._replace(functions=self.world.functions, measured=True)
        return plan._replace(
            settings=settings, population=plan.population._replace(floor=jnp.zeros_like(plan.population.floor))
        )

    @cached_property
    def floors(self) -> np.ndarray:
        """R times L_i(PO) for every client; NaN where it is not known."""
        if not self.world.exact:
            return np.full(self.clients, np.nan)
        return self.config.local_steps * np.asarray(self.world.client_risks(self.world.optimum))

    @property
    def most_samples(self) -> int:
        """The largest sample count of a client and round that is plausible: MAX_EXCESS times what was requested."""
        settings = self.plan.settings
        return min(MAX_EXCESS * settings.local_steps * max(settings.sizes), 2**31 - 1)

    @cached_property
    def fingerprint(self) -> dict[str, str]:
        """What identifies the run; two sides with different fingerprints must not work together."""
        return {**fingerprint("flower", self.world, self.plan), "privacy": repr(self.privacy)}

    @cached_property
    def digest(self) -> str:
        """A short hash of the fingerprint, which every order carries."""
        return hashlib.sha256(json.dumps(self.fingerprint, sort_keys=True).encode()).hexdigest()[:16]

    @cached_property
    def like(self) -> Batch:
        """The shapes of a batch."""
        settings = self.plan.settings
        return batch_shape(settings, self.plan.population, self.start, settings.samples)

    @property
    def start(self) -> Theta:
        """The initial model."""
        return trees.take(self.plan.models, 0)

    @cached_property
    def empty_state(self) -> Any:
        """The state of a client before its first step."""
        return compiled_first_state(self.plan.settings, self.plan.population, self.start)

    @cached_property
    def mail(self) -> Any:
        """A client's mail before the first round."""
        return self.method.mail_like(self.plan.settings.server, self.empty_state.own)

    @property
    def delivers(self) -> bool:
        """Whether clients receive mail from the server with the next order."""
        return bool(self.method.exchanges) or self.mail != ()

    @cached_property
    def figures(self) -> tuple[str, ...]:
        """The names of the method's figures."""
        return figure_names(self.plan)

    @property
    def turns(self) -> int:
        """Messages that a client gets in a round."""
        return 1 + self.method.exchanges


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
        federation = import_object(str(config["federation"]))
        if not isinstance(federation, Federation):
            raise checks.InputError(f"{config['federation']} must be a Federation, got {type(federation).__name__}")
        rounds = config.get("rounds")
        return federation if rounds is None else federation.with_rounds(int(rounds))
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
        method=get_algorithm(str(config.get("algorithm", "profl")))(**options),
        clients=clients,
        rounds=int(config["rounds"]),
        local_steps=int(config.get("local-steps", 5)),
        samples=int(config.get("samples", 500)),
        seed=int(config.get("seed", 0)),
        participation=float(config.get("participation", 1.0)),
    )
