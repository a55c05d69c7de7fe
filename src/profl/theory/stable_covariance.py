"""The asymptotic covariance of averaged repeated gradient descent at the stable point, from a problem's exact answers.

    sqrt(N n) (mean theta - PS)  ->  N(0, V^-1 S V^-T)            N steps on n samples of every client
    V = d/dtheta sum_i alpha_i E_{z~D_i(theta)} grad l(z; theta)    with the data's reaction in the derivative, at PS
    S = sum_i alpha_i^2 Cov_{z~D_i(PS)} grad l(z; PS)

(Cutler, Diaz and Drusvyatskiy 2022, Theorem 1.1, for clients with weights.) No estimator that sees only such data has a
smaller one. It is that of a small constant learning rate too, where the limit is the point that the run is around.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from profl import checks, random, trees
from profl.problem.problem import Problem, check_problem
from profl.typing import Theta


@dataclass(frozen=True, eq=False)
class StableCovariance:
    """What repeated gradient descent is uncertain by at the stable point; d numbers of the flattened model.

    Attributes:
      stable: PS, a model.
      jacobian: V (d, d), of the gradient that retraining follows, with the data's reaction in it.
      noise: S (d, d), the covariance of that gradient where every client draws one sample.
    """

    stable: Theta
    jacobian: np.ndarray
    noise: np.ndarray

    @property
    def covariance(self) -> np.ndarray:
        """V^-1 S V^-T, (d, d)."""
        inverse = np.linalg.inv(self.jacobian)
        return inverse @ self.noise @ inverse.T

    def errors(self, steps: int, samples: int) -> Theta:
        """The standard errors of the mean of so many ``steps`` on so many ``samples`` of every client: a model."""
        checks.positive_int("steps", steps)
        checks.positive_int("samples", samples)
        with jax.enable_x64(True):
            unravel = ravel_pytree(trees.to_device(self.stable, jnp.float64))[1]
            errors = np.sqrt(np.diagonal(self.covariance) / (steps * samples))
            return jax.tree.map(np.asarray, unravel(jnp.asarray(errors)))


def stable_covariance(problem: Problem, *, draws: int = 2**14) -> StableCovariance:
    """The covariance at the stable point of a problem that states its risk; V is exact, S from ``draws`` per client.

    >>> import profl
    >>> case = profl.cases.mean_estimation(clients=4, sensitivity=0.5, sd=0.1)  # V = 0.5, S = 0.01 / 4
    >>> round(float(stable_covariance(case).covariance[0, 0]), 3)
    0.01
    """
    check_problem(problem)
    checks.positive_int("draws", draws, least=2)
    stable = problem.stable
    jacobian = np.asarray(problem.stable_jacobian(stable))
    theta = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(float)), stable)

    @jax.jit
    def of_client(row: Any) -> Any:
        number, client = row
        batch = problem.reaction.sample(random.data_key(random.seed_key(0), number, 0), theta, client, draws)
        gradients = jax.vmap(lambda z: trees.ravel(jax.grad(problem.loss)(theta, z)))(batch)
        centred = gradients - jnp.mean(gradients, 0)
        return centred.T @ centred / (draws - 1)

    rows = jnp.arange(problem.count), trees.to_device(problem.clients)
    each = np.asarray(jax.lax.map(of_client, rows), float)
    return StableCovariance(stable, jacobian, np.tensordot(np.asarray(problem.weights, float) ** 2, each, 1))
