"""Exact answers to limits on what comes in: expected outcomes, and the performative optimum that keeps the limits.

    o_k(theta) = sum_i w_ki E_{z ~ D_i(theta)} outcome_k(theta, z)

No reaction states the expectation of any outcome, so it is the mean over draws that never change. They are moved, or
weighted, until the family estimates exactly f_i(theta) from them, where the problem states f_i: an outcome that is
linear in what the family describes is then exact, and others have the error of the rest (``outcome_errors``).

The constrained optimum is found by sequential quadratic programming (scipy's SLSQP) from several starts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from profl import checks, random, trees
from profl.problem.families import Family
from profl.problem.limits import space_region
from profl.problem.oracle import MonteCarloReaction
from profl.problem.outcomes import OutcomeLimit, outcome_values, weight_table
from profl.problem.reaction import Reaction
from profl.typing import Array, Client, Theta

if TYPE_CHECKING:
    from profl.problem.problem import Problem

DRAWS = 20_000
"""Draws per client, unless ``solve`` has stated another number."""

CLIENTS_AT_ONCE = 8
"""Clients whose draws are in memory at once."""

KEPT = 1e-6
"""Share of a bound's size (and of 1) by which the solver may miss it: that is rounding."""

TURNS = 300
"""Turns of the solver from each start."""


class Outcomes(NamedTuple):
    """What the outcomes of a problem follow from; hashable."""

    reaction: Reaction
    family: Family
    limits: tuple[OutcomeLimit, ...]
    draws: int

    @classmethod
    def of(cls, problem: Problem) -> Outcomes:
        """Those of a problem; refuses live clients, whose reaction nobody knows."""
        if problem.live:
            raise checks.InputError(
                f"problem {problem.name!r} has live clients: nobody knows the outcomes of a model exactly; "
                "a run and campaign.status() estimate them"
            )
        reaction = problem.reaction
        draws = reaction.samples if isinstance(reaction, MonteCarloReaction) else DRAWS
        return cls(reaction, problem.family, problem.functions.outcomes, draws)

    def at_client(self, variance: bool, theta: Theta, client: Client) -> Array:
        """The expected outcomes of one client, (limits,); or the ``variance`` of these estimates."""
        reaction, family = self.reaction, self.family
        batch = reaction.sample(random.seed_key(0), theta, client, self.draws)
        smooth = family.shift is not None and not family.discrete
        batch = batch if smooth else jax.lax.stop_gradient(batch)
        equal = jnp.full(self.draws, 1.0 / self.draws)

        def means(weights: Array) -> Array:
            outcomes = jax.vmap(partial(outcome_values, self.limits, theta))
            if reaction.parameters is None:
                return weights @ outcomes(batch)
            estimate, f = family.estimate(batch, weights), reaction.parameters(theta, client)
            if family.moves:
                return jnp.stack([weights @ self._moved(limit, theta, batch, f, estimate) for limit in self.limits])
            log_prob = jax.vmap(family.log_prob, (0, None))
            ratio = weights * jnp.exp(log_prob(batch, f) - log_prob(batch, estimate))
            return ratio @ outcomes(batch) / jnp.sum(ratio)

        return jnp.var(jax.jacrev(means)(equal), 1) / self.draws if variance else means(equal)

    def _moved(self, limit: OutcomeLimit, theta: Theta, batch: Any, f: Array, estimate: Array) -> Array:
        """The outcomes of draws once f is moved to where it is, (draws,)."""
        outcome = partial(limit.outcome, theta)
        return jax.vmap(lambda z: self.family.moved_loss(outcome, z, f - estimate, estimate))(batch)

    def values(self, clients: Client, theta: Theta) -> Array:
        """o(theta), (limits,)."""
        each = trees.map_chunks(partial(self.at_client, False, theta), CLIENTS_AT_ONCE, clients)
        return jnp.sum(weight_table(self.limits) * each.T, 1)

    def own_values(self, clients: Client, thetas: Theta) -> Array:
        """The same with every client at a model of its own."""
        each = trees.map_chunks(partial(self.at_client, False), CLIENTS_AT_ONCE, thetas, clients)
        return jnp.sum(weight_table(self.limits) * each.T, 1)

    def errors(self, clients: Client, theta: Theta) -> Array:
        """Standard errors of ``values``, (limits,)."""
        each = trees.map_chunks(partial(self.at_client, True, theta), CLIENTS_AT_ONCE, clients)
        return jnp.sqrt(jnp.sum(weight_table(self.limits) ** 2 * each.T, 1))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "values": lambda outcomes, clients, theta: outcomes.values(clients, theta),
    "own": lambda outcomes, clients, thetas: outcomes.own_values(clients, thetas),
    "errors": lambda outcomes, clients, theta: outcomes.errors(clients, theta),
    "jacobian": lambda outcomes, clients, theta: jax.jacrev(partial(outcomes.values, clients))(theta),
}


def evaluate(name: str, problem: Problem, theta: Theta) -> Any:
    """One of ``FUNCTIONS``, in double precision, as NumPy arrays."""
    with jax.enable_x64(True):
        arguments = trees.to_device((problem.clients, theta), jnp.float64)
        return jax.tree.map(np.asarray, _compiled(name, Outcomes.of(problem), *arguments))


@partial(jax.jit, static_argnums=(0, 1))
def _compiled(name: str, outcomes: Outcomes, clients: Client, models: Theta) -> Any:
    return FUNCTIONS[name](outcomes, clients, models)


# -- the constrained optimum -------------------------------------------------------------------------------------------


def constrained_optimum(problem: Problem, starts: list[Theta]) -> Theta:
    """The model of least risk that keeps all limits: the best end of the solver from ``starts``, in double precision.

    Refuses limits that no end keeps.
    """
    from scipy import optimize  # takes a quarter of a second, and only problems with such limits need it

    limits = problem.functions.outcomes
    unravel = _unraveller(starts[0])
    signs, bounds = np.array([one.sign for one in limits]), np.array([one.bound for one in limits])
    constraints: list[dict[str, Any]] = [
        {
            "type": "ineq",
            "fun": lambda x: signs * (bounds - evaluate("values", problem, unravel(x))),
            "jac": lambda x: -signs[:, None] * trees.flat_rows(evaluate("jacobian", problem, unravel(x))),
        }
    ]
    region = space_region(problem.project, _flat(starts[0]).size)
    if region.b.size:
        constraints.append({"type": "ineq", "fun": lambda x: region.b - region.A @ x, "jac": lambda x: -region.A})
    found: list[tuple[float, float, np.ndarray]] = []
    for start in starts:
        end = optimize.minimize(
            lambda x: problem.risk(unravel(x)),
            _flat(start),
            jac=lambda x: _flat(problem.gradient(unravel(x))),
            bounds=list(zip(*region.bounds, strict=True)),
            constraints=constraints,
            method="SLSQP",
            options={"maxiter": TURNS, "ftol": 1e-14},
        )
        with jax.enable_x64(True):
            x = _flat(problem.project(unravel(end.x)))
        over = (signs * (evaluate("values", problem, unravel(x)) - bounds)) / (1 + np.abs(bounds))
        found.append((float(np.max(over)), problem.risk(unravel(x)), x))
    kept = [one for one in found if one[0] <= KEPT]
    if not kept:
        x = min((one for one in found if np.isfinite(one[0])), default=found[0], key=lambda one: one[0])[2]
        over = signs * (evaluate("values", problem, unravel(x)) - bounds)
        worst = int(np.nanargmax(over / (1 + np.abs(bounds)))) if np.isfinite(over).any() else 0
        raise checks.InputError(
            f"no model was found that keeps all limits: the nearest one misses {limits[worst].words!r} by "
            f"{over[worst]:.3g}; loosen one of them, or start nearer to a model that keeps them"
        )
    return unravel(min(kept, key=lambda one: one[1])[2])


def _flat(theta: Theta) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(theta)])


def _unraveller(like: Theta) -> Callable[[np.ndarray], Theta]:
    """The function that makes a model in double precision of a vector."""
    with jax.enable_x64(True):
        unravel = ravel_pytree(trees.cast(like, jnp.float64))[1]

    def make(vector: np.ndarray) -> Theta:
        with jax.enable_x64(True):
            return jax.tree.map(np.asarray, unravel(jnp.asarray(vector)))

    return make
