"""``prm``: performative risk minimisation, the counterpart of repeated risk minimisation that ends at the optimum.

A deployment is expensive, a message is cheap. In every round each client

    deploys   the model to try, and perturbations of it: the larger, the more there is left to learn
    compares  what it lost there with what the incumbent lost: the model to try takes its place unless the risk rose
    fits      f near that model from all its observations, with what the other clients know as its prior

and then, without deploying anything, all of them together minimise the fitted performative risk
sum_i alpha_i L_i(theta) inside a trust region: clients report value, gradient and curvature of theirs, the server takes
Newton steps, and what it ends at is tried next. So there is no learning rate, and no drift of local steps: what is
minimised is the weighted sum itself. theta, the model of the run, is the incumbent: it was deployed and compared.

    settings         options and constants
    client           what a client deploys, fits and reports; state: what it keeps
    incumbent        what a batch shows of the risk, and the verdict on what was tried
    noise            the variance of f, pooled over batches
    response         the fitted f, and how well it is known
    surrogate_risk   the fitted risk, its curvature H, and the covariance of its gradient, C
    consensus        clients learn from each other
    server           Newton steps in a trust region (newton), and how much to explore
    personal         parts of theta that stay at a client
    messages         what goes to and fro

The expected excess is tr(H^-1 C) / 2. Perturbations are sized so that they cost ``curiosity`` times that. All lengths
are in natural units (``profl.parts.units``): nothing depends on where zero is or on the units of a parameter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from profl import checks, random, trees
from profl.methods.intervals import Posterior
from profl.methods.method import Arrival, Forecast, Method
from profl.methods.prm import client, outcome_server, personal
from profl.methods.prm import server as at_server
from profl.methods.prm.consensus import consensus
from profl.methods.prm.intervals import posterior
from profl.methods.prm.messages import Mail, empty_mail
from profl.methods.prm.past import PastDeployments, client_history
from profl.methods.prm.server import ServerState
from profl.methods.prm.settings import EVIDENCE_NEEDED, MOST_PARAMETERS, Settings
from profl.methods.prm.state import ClientState, initial_state
from profl.packing import Packed, pack
from profl.parts.jacobian import reaction_memory
from profl.parts.personal import ModelSplit
from profl.problem.outcomes import estimate_names
from profl.problem.problem import Problem, View
from profl.server import rules
from profl.server.entries import Report, Values
from profl.typing import Array, Batch, Key, Theta


@dataclass(frozen=True)
class PRM(Settings, Method):
    """Made by ``profl.prm``."""

    name = "prm"
    needs = ("samples", "family")
    least_deployments = 3
    rereads = True
    draws = False
    keeps_outcomes = True

    @property
    def info(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("loss",) if self.filter == "none" else ("loss", "kept")

    @property
    def exchanges(self) -> int:  # type: ignore[override]
        return self.last_turn

    def check(self, problem: Problem) -> None:
        super().check(problem)
        size = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(problem.initial, random.seed_key(0))))
        if size > MOST_PARAMETERS:
            raise checks.InputError(
                f"prm solves for a matrix of the model's size and takes at most {MOST_PARAMETERS} parameters, "
                f"got {size}: use pofl"
            )
        if self.personal is not None:
            self.personal.check(problem)
            if problem.functions.outcomes:
                raise checks.InputError(
                    "personal parts and limits on what comes in cannot be combined: what a client changes by itself, "
                    "the server cannot hold to the limit"
                )
        if self.history is not None:
            self.history.check(clients=problem.count)

    def settings(self) -> dict[str, Any]:
        plain = Method.settings(replace(self, personal=None, history=None))
        stated = {name: value for name, value in plain.items() if name not in ("personal", "history")}
        stated |= {} if self.personal is None else {"personal": self.personal.describe()}
        return stated if self.history is None else stated | {"history": repr(self.history)}

    def numbers(self) -> Any:
        return () if self.history is None else self.history.numbers

    def with_numbers(self, numbers: Any) -> PRM:
        return self if self.history is None else replace(self, history=self.history.with_numbers(numbers))

    # -- at a client ---------------------------------------------------------------------------------------------------

    def init(self, problem: View, theta: Theta, batch: Batch) -> ClientState:
        return initial_state(self, problem, theta, batch)

    def init_client(self, state: ClientState, client: Array) -> ClientState:
        if self.history is None:
            return state
        return state._replace(history=client_history(self.history, client))

    def deploy(self, problem: View, state: ClientState, key: Key, theta: Theta) -> tuple[Theta, ClientState]:
        return client.perturb(problem, state, key, personal.own_model(self.personal, state, theta))

    def step(
        self, problem: View, state: ClientState, theta: Theta, arrival: Arrival, key: Key
    ) -> tuple[Theta, ClientState, dict[str, Array]]:
        theta, (batch, weights, deployed, _) = personal.own_model(self.personal, state, theta), arrival
        weights, info, state = client.filter_batch(self, problem, state, deployed, batch, weights)
        state, loss = client.learn(self, problem, state, theta, deployed, batch, weights)
        return theta, personal.remember_deployed(self.personal, state), {"loss": loss, **info}

    def report(self, problem: View, state: ClientState, theta: Theta) -> Report:
        theta = personal.own_model(self.personal, state, theta)
        report = client.report_fit(problem, state, theta)
        if self.personal is None:
            return report
        return personal.report_shared_only(self.personal, problem, state, theta, report)

    def judged(self, theta: Theta) -> Any:
        """The shared part: beside it stands the personal part of the start, and both together may lie outside."""
        return theta if self.personal is None else self.personal.shared(theta)

    def receive(self, problem: View, state: ClientState, theta: Theta, mail: Mail) -> tuple[Theta, ClientState]:
        state = client.read_mail(self, state, mail)
        if self.personal is None:
            return theta, state
        return theta, personal.update_personal(self.personal, problem, state, client.tried_model(problem, state, theta))

    def mail_like(self, problem: View, state: ClientState) -> Mail:
        return empty_mail(state.trial, state.common_mean, len(problem.outcomes))

    def figures(self, problem: View, state: ClientState, theta: Theta) -> dict[str, Array]:
        """The size of perturbations in units, the share of parameters that are held, the evidence of a discrepancy
        between the family and the observed losses, in standard errors, and the evidence of a memory.

        The latter is counted from the threshold of other methods, so that one threshold suits all.
        """
        memory = state.reaction_memory
        known = {} if state.history is None else {"history_bias": state.history.factor}
        if state.outcomes is not None:
            estimate = jnp.where(state.outcomes.informed, state.outcomes.estimate, jnp.nan)
            known |= dict(zip(estimate_names(len(problem.outcomes)), estimate.ravel(), strict=True))
        return known | {
            "exploration": state.exploration.size,
            "held": state.held,
            "discrepancy": state.surrogate.discrepancy.evidence,
            "memory": memory.evidence - (EVIDENCE_NEEDED - reaction_memory.EVIDENCE_NEEDED),
            "log2_settling_time": memory.log2_settling_time,
            "log2_settling_time_error": memory.error,
        }

    def final(self, problem: View, state: ClientState, report: Report) -> Any:
        """The client's personal part; None where there is none."""
        return None if self.personal is None else {"personal": personal.final_personal(state), "method": None}

    # -- at the server -------------------------------------------------------------------------------------------------

    def open(self, problem: View, theta: Theta) -> Packed:
        return pack(at_server.initial_server(self, theta, problem.client_count, problem.outcomes))

    def combine(
        self,
        problem: View,
        server: Packed,
        theta: Theta,
        reports: Values,
        weights: Array,
        accepted: Array,
        key: Key,
    ) -> tuple[Theta, Packed, Mail]:
        old: ServerState = server.unpack()
        aggregate = at_server.block_aggregator(rules.get(self.aggregate), weights, accepted)
        gradients = reports["fit"][:, :, 0] * old.units
        old = at_server.compare_clients(self, old, problem.client_ids, gradients, weights, accepted)
        flat, unravel = ravel_pytree(theta)
        share, anybody = jnp.where(accepted, weights, 0.0), jnp.any(accepted)
        concentration = at_server.concentration_of(share)
        outcomes = None
        if problem.outcomes:
            fitted, rule = old.turn >= self.turns_before_newton, rules.get(self.aggregate)
            outcomes = outcome_server.read(rule, problem, old, flat, reports["outcomes"], weights, accepted, fitted)
        new, model = at_server.take_turn(self, problem, old, theta, reports, aggregate, concentration, outcomes)
        new, flat = trees.where(anybody, (new, model), (old._replace(turn=new.turn), flat))
        equal = jnp.where(weights > 0, 1.0, 0.0)  # how people react does not depend on how much a client weighs
        among = at_server.block_aggregator(
            rules.get(self.aggregate), equal / jnp.maximum(jnp.sum(equal), 1.0), accepted
        )
        common = consensus(reports["reaction"], among, at_server.concentration_of(equal * accepted))
        mail = at_server.make_mail(new, common, jnp.sum(share > 0) < 2, jnp.where(anybody, old.turn, self.last_turn))
        if problem.outcomes:
            mail = mail._replace(outcomes=outcome_server.estimates(new, problem.outcomes))
        model = unravel(flat)
        if self.personal is not None:
            model = self.personal.join(model, self.personal.personal(theta))
        return model, pack(new), trees.repeat(mail, len(weights))

    def outcome_estimates(self, problem: View, server: Any) -> Any:
        if not problem.outcomes:
            return None
        return outcome_server.estimates(server.unpack(), problem.outcomes)

    def distrusted(self, server: Packed) -> dict[str, Any]:
        if not isinstance(rules.get(self.aggregate), rules.ReweightedMean):
            return {}
        on_host = jax.tree.map(np.asarray, server)  # unpacked there it takes no programs
        return {f"gradients {rules.FAR}": on_host.unpack().distances.since}

    def posterior(self, problem: View, server: Packed) -> Posterior | None:
        """None with personal parts, as the forecast; and where what comes in is limited, since limits shift the optimum
        by what is unknown of them."""
        if self.personal is not None or problem.outcomes:
            return None
        on_host = jax.tree.map(np.asarray, server)  # unpacked there it takes no programs
        return posterior(problem, on_host.unpack())

    def forecast(self, problem: View, server: Packed) -> Forecast | None:
        """None with personal parts: what is expected is of the shared part alone, and says nothing of all models."""
        return server.unpack().forecast if self.personal is None else None


@checks.explain_call
def prm(
    *,
    filter: Any = "none",
    aggregate: Any = "mean",
    share: bool = True,
    curiosity: float = 16.0,
    region: float = 1.0,
    keep: int = 32,
    personal: Any = None,
    history: PastDeployments | None = None,
) -> PRM:
    """Performative risk minimisation: the optimum within some thirty deployments, without a learning rate.

    Args:
      filter: which samples to trust: "none", "robust", "paper", or a function ``(gradients, weights) -> weights``.
      aggregate: how the server combines reports: "mean", or a robust rule of ``profl.server.rules.RULES``, also with
        the share of hostile clients, "history:0.3".
      share: whether clients learn from each other how data react; each keeps its own response where it differs.
      curiosity: what exploring may cost in a deployment, in multiples of the expected excess. More learns faster.
      region: the first trust region, in natural units (``profl.parts.units``); it grows and shrinks by itself.
      keep: how many of its newest batches a client minimises over.
      personal: names of parts of theta that stay at the client, or True for all (``profl.parts.personal``).
      history: what past deployments say (``profl.methods.past_deployments``): the run then begins with their slopes.

    >>> prm(region=0.0)
    Traceback (most recent call last):
        ...
    profl.checks.InputError: region must be a finite number above 0, got 0.0
    """
    if history is not None and not isinstance(history, PastDeployments):
        raise checks.InputError(
            f"history must be what profl.methods.past_deployments makes, got {checks.shown(history)}"
        )
    split = None if personal is None else ModelSplit(personal)
    return PRM(filter, aggregate, share, curiosity, region, keep, personal=split, history=history)
