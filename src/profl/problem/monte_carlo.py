"""The decoupled risk of a reaction that is known only through its samples, from a fixed set of draws.

With the draws fixed the average is a deterministic function, so the optimum and the stable point of a user's problem
can be found by the same solvers as those of a built-in case. It is differentiable in both arguments:

* where the family can shift samples, through the samples themselves (``sample`` is then a smooth function of theta);
* elsewhere through the likelihood ratio p(z; f(theta)) / p(z; f(theta)), whose value is one and whose derivative is
  the score (this needs ``parameters``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from profl import checks, random
from profl.problem.families import Family
from profl.problem.reaction import Unmeasured
from profl.typing import Array, Client, Loss, Theta


@dataclass(frozen=True)
class MonteCarloReaction(Unmeasured):
    """``reaction`` with a risk estimated from ``samples`` draws per client that never change."""

    family: Family
    loss: Loss
    samples: int

    def __post_init__(self) -> None:
        if self.family.shift is None and self.reaction.parameters is None:
            raise checks.InputError(
                f"{type(self.family).__name__} shifts no samples, so a numerical optimum needs f(theta): "
                "pass reaction=profl.worlds.SampledReaction(sample, parameters)"
            )

    def decoupled(self, deployed: Theta, theta: Theta, client: Client) -> Array:
        batch = self.reaction.sample(random.seed_key(0), deployed, client, self.samples)
        losses = jax.vmap(self.loss, (None, 0))(theta, batch if self.family.shift else jax.lax.stop_gradient(batch))
        if self.family.shift is None:
            assert self.reaction.parameters is not None
            log_prob = jax.vmap(self.family.log_prob, (0, None))(
                jax.lax.stop_gradient(batch), self.reaction.parameters(deployed, client)
            )
            losses = losses * jnp.exp(log_prob - jax.lax.stop_gradient(log_prob))
        return jnp.mean(losses)

    def variance(self, theta: Theta, client: Client) -> Array:
        """Of the risk of a model on the data that it brings in, as an average over the draws."""
        batch = self.reaction.sample(random.seed_key(0), theta, client, self.samples)
        return jnp.var(jax.vmap(self.loss, (None, 0))(theta, batch)) / self.samples

    def risk_in(self, state: Any, deployed: Theta, theta: Theta, client: Client) -> Array:
        """On the same draws as they come from that state."""
        batch = self.reaction.sample_in(state, random.seed_key(0), deployed, client, self.samples)
        return jnp.mean(jax.vmap(self.loss, (None, 0))(theta, batch))
