"""Sales prediction for two groups of retailers who leave where the prediction is bad (contribution dynamics).

Group k has fixed data x ~ N(m_k, 1), y = a_k x + N(0, 1), and its share grows with the error that the *other* group
suffers:

    nu_ik(theta) = (gamma_i e_{-k}(theta) + c) / sum_k' (gamma_i e_k'(theta) + c)
    e_k(theta) = E_k 0.5 (theta x - y)^2

(gamma_i = 1 is the paper's formula). Loss 0.5 ((theta x - y)^2 + (10/3) theta^2). The paper gives no constants for
this case; a = (6, -2), m = (5/3, 1) and c = 1 put PO at -1.06 and PS at -0.53 when clients are equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from profl import checks, random
from profl.cases.common import base_data, copies, sensitivities
from profl.cases.group_pricing import draw_groups
from profl.cases.housing import LOSS, RIDGE
from profl.problem.families import GroupShares
from profl.problem.model_space import Box
from profl.problem.problem import Problem
from profl.problem.reaction import Reaction
from profl.typing import Array, Batch, Client, Key


@dataclass(frozen=True)
class Loyalty(Reaction):
    """Groups stay where the other fares worse; a client is {"gamma": (), "centre": (2,), "slope": (2,), "c": ()}."""

    noise: float = 1.0

    def errors(self, theta: Array, client: Client) -> Array:
        """e_k(theta) of both groups."""
        second_moment = client["centre"] ** 2 + 1
        return 0.5 * ((theta[0] - client["slope"]) ** 2 * second_moment + self.noise**2)

    def parameters(self, theta: Array, client: Client) -> Array:
        weight = client["gamma"] * self.errors(theta, client) + client["c"]
        return weight[::-1] / jnp.sum(weight)

    def sample(self, key: Key, theta: Array, client: Client, n: int) -> Batch:
        who, noise = jax.random.split(key)
        group = draw_groups(who, self.parameters(theta, client), n)
        draws = random.normal(noise, n, 2)
        x = client["centre"][group] + draws[:, 0]
        y = client["slope"][group] * x + self.noise * draws[:, 1]
        return {"x": x[:, None], "y": y, "group": group}

    def decoupled(self, deployed: Array, theta: Array, client: Client) -> Array:
        shares = self.parameters(deployed, client)
        return shares @ self.errors(theta, client) + 0.5 * RIDGE * jnp.sum(theta**2)


@checks.explain_call
def retail(
    clients: int = 10,
    heterogeneity: float = 0.5,
    weights: Any = None,
    seed: int = 0,
    *,
    loyalty: float = 1.0,
    spread: str = "even",
    base_spread: float = 0.0,
) -> Problem:
    """A sales model for distributors whose two groups of retailers stay or go with its errors; ``loyalty`` is c.

    Args:
      base_spread: by which share m_k and a_k differ between clients, up or down.

    >>> case = retail(heterogeneity=0)
    >>> round(float(case.optimum[0]), 2), round(float(case.stable[0]), 2)
    (-1.06, -0.53)
    """
    checks.positive("loyalty", loyalty)
    if not 0 <= checks.real("heterogeneity", heterogeneity) <= 1:
        raise checks.InputError(f"heterogeneity must lie in [0, 1] around a sensitivity of 1, got {heterogeneity!r}")

    def initial(key: Key) -> Array:
        return jax.random.uniform(key, (1,), minval=0.0, maxval=2.0, dtype=jnp.float32)

    return Problem(
        name="retail",
        loss=LOSS,
        family=GroupShares(2),
        reaction=Loyalty(),
        clients={
            "gamma": sensitivities(1.0, heterogeneity, clients, spread, seed),
            "centre": base_data([5 / 3, 1.0], base_spread, clients, seed),
            "slope": base_data([6.0, -2.0], base_spread, clients, seed, part=1),
            "c": copies(loyalty, clients),
        },
        initial=initial,
        project=Box(-10.0, 10.0),
        weights=weights,
    )
