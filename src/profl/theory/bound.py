"""The paper's error terms and its convergence bound (Lemmas 2-4, Theorem 1), from constants estimated on a run.

    omega_F   = 2 eps^2 F^2 + (1 - eps)^2 (M^2 eta^4 G^4 H^6 / 2 + 2 v H d / (n eta^2)) / lambda^2
    omega_D^2 = l^2 d (omega_F + v F^2 / n)
    omega_Q^2 = 2 l^2 d (omega_F + F^2)
    L(theta_T) - L(PO) <= (1 - rho eta)^T (L(theta_0) - L(PO)) + C / (rho eta)
    C = E eta + L (1 + g) (E + G^2) eta^2 + L^2 (R - 1)^2 G^2 ((1 + g)^2 + s^2) eta^3 / 2
    E = (1 - eps) omega_D^2 + eps (omega_D + L W + omega_Q)^2

with g and s the mean and the deviation of the clients' sensitivities gamma_i, W the distance of junk from data, and v
what the paper calls f_phi. Constants behind O(...) are taken as 1, and g_min, which only helps, as 0.

The last step of the paper's proof bounds C / (rho eta) by C, which needs rho eta >= 1. ``bound`` keeps the division;
``bound(..., paper=True)`` is the formula as printed, which is not proved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from profl import checks, random, trees
from profl.problem.problem import Problem, check_problem
from profl.results.record import Run

__all__ = ["Constants", "bound", "estimate", "omega_D", "omega_F", "omega_Q"]

PHI = 0.05  # the paper's failure probability of a bound on a sampling error
LEAST_MOVE = 1e-4  # of the longest move: between closer models a change of the Jacobian is rounding
LEAST_RATE = 1e-4  # of change per move: a smaller one is rounding


@dataclass(frozen=True)
class Constants:
    """What the bound is made of; each is the largest (``rho``, ``singular``: the smallest) value met on a run.

    Attributes:
      F: |df_i/dtheta|.
      M: |d^2 f_i/dtheta^2|, from changes of the Jacobian between two models of the run.
      G: |grad l| of one sample.
      loss: |l| of one sample.
      L: |grad l(z; theta) - grad l(z'; theta')| over |theta - theta'| + |z - z'|.
      rho: |grad L|^2 / 2 over the excess (Polyak-Lojasiewicz).
      singular: the smallest singular value of the moves Delta theta in a window.
      gamma: per client, the Wasserstein-1 distance of D_i(theta) and D_i(theta') over |theta - theta'|.
      weights: alpha_i.
      noise: variance of one sample's f, times log(2 / phi) with phi = 0.05.
      start: excess at the start.
      d: size of theta.
    """

    F: float
    M: float
    G: float
    loss: float
    L: float
    rho: float
    singular: float
    gamma: tuple[float, ...]
    weights: tuple[float, ...]
    noise: float
    start: float
    d: int


def _check(c: Any, eta: Any, H: Any, n: Any, eps: Any) -> None:
    """Refuse what no bound can be made of."""
    if not isinstance(c, Constants):
        raise checks.InputError(f"c must be the constants of profl.theory.estimate, got {checks.shown(c)}")
    checks.positive("eta", eta)
    checks.positive_int("H", H)
    checks.positive_int("n", n)
    if not 0 <= checks.real("eps", eps) <= 1:
        raise checks.InputError(f"eps must lie in [0, 1], got {eps!r}")


def omega_F(c: Constants, eta: float, H: int, n: int, eps: float = 0.0) -> float:
    """Bound on the squared error of the estimated Jacobian (Lemma 2).

    >>> straight = Constants(1, 0, 1, 1, 1, 1, 1, (1.0,), (1.0,), 1, 1, 1)
    >>> omega_F(straight, 0.1, 10, 1000) / omega_F(straight, 0.1, 10, 2000)
    2.0
    """
    _check(c, eta, H, n, eps)
    curved = c.M**2 * eta**4 * c.G**4 * H**6 / 2
    sampled = 2 * c.noise * H * c.d / (n * eta**2)
    return 2 * eps**2 * c.F**2 + (1 - eps) ** 2 * (curved + sampled) / c.singular**2


def omega_D(c: Constants, eta: float, H: int, n: int, eps: float = 0.0) -> float:
    """Bound on the error of the second gradient term on honest data (Lemma 4)."""
    _check(c, eta, H, n, eps)
    return c.loss * math.sqrt(c.d * (omega_F(c, eta, H, n, eps) + c.noise * c.F**2 / n))


def omega_Q(c: Constants, eta: float, H: int, n: int, eps: float = 0.0) -> float:
    """The same on junk (Lemma 4)."""
    _check(c, eta, H, n, eps)
    return c.loss * math.sqrt(2 * c.d * (omega_F(c, eta, H, n, eps) + c.F**2))


def bound(
    c: Constants,
    *,
    eta: float,
    H: int,
    n: int,
    R: int,
    T: int,
    eps: float = 0.0,
    distance: float = 0.0,
    paper: bool = False,
) -> float:
    """Bound on the expected excess after T local steps (Theorem 1); infinite where rho eta is not below 1.

    ``distance`` is W, the largest Wasserstein-1 distance between data and junk; ``paper`` leaves out the 1 / (rho eta).
    """
    _check(c, eta, H, n, eps)
    checks.positive_int("R", R)
    checks.positive_int("T", T, least=0)
    if checks.real("distance", distance) < 0:
        raise checks.InputError(f"distance must be 0 or more, got {distance!r}")
    if not 0 < c.rho * eta < 1:
        return math.inf
    weights, gamma = np.array(c.weights), np.array(c.gamma)
    mean = float(weights @ gamma)
    spread2 = float(weights @ (gamma - mean) ** 2)
    honest, junk = omega_D(c, eta, H, n, eps), omega_Q(c, eta, H, n, eps)
    error = (1 - eps) * honest**2 + eps * (honest + c.L * distance + junk) ** 2
    drift = c.L**2 * (R - 1) ** 2 * c.G**2 * ((1 + mean) ** 2 + spread2) / 2
    constant = error * eta + c.L * (1 + mean) * (error + c.G**2) * eta**2 + drift * eta**3
    left = (1 - c.rho * eta) ** T
    return left * c.start + constant * (1.0 if paper else (1 - left) / (c.rho * eta))


def estimate(problem: Problem, run: Run, *, window: int = 20, models: int = 12, samples: int = 200) -> Constants:
    """The constants, from ``models`` models of a run, evenly over its length, and ``samples`` draws at each.

    Maxima over a sample: lower than the suprema the theory asks for, so a bound made from them is not a certificate.
    Sensitivities come from one coupling, the same random numbers drawn at both models; the mean distance of what comes
    out bounds the Wasserstein-1 distance from above, and equals it where the reaction is a shift.
    """
    check_problem(problem)
    if not isinstance(run, Run):
        raise checks.InputError(f"run must be one such as profl.simulate returns, got {checks.shown(run)}")
    checks.positive_int("window", window)
    checks.positive_int("models", models, least=2)
    checks.positive_int("samples", samples)
    path = np.stack([trees.ravel(trees.take(trees.take(run.theta, 0), t)) for t in range(run.rounds.size)])
    chosen = path[np.unique(np.linspace(0, len(path) - 1, models).round().astype(int))]
    unravel = ravel_pytree(trees.take(trees.take(run.theta, 0), 0))[1]
    thetas = [unravel(jnp.asarray(vector)) for vector in chosen]
    jacobians = np.stack([problem.jacobian(theta) for theta in thetas])
    draws = _draws(problem, thetas, samples)
    risks = np.array([problem.risk(theta) for theta in thetas]) - problem.risk(problem.optimum)
    slopes = np.array([float(np.sum(np.asarray(trees.ravel(problem.gradient(theta))) ** 2)) for theta in thetas])
    far = risks > 1e-3 * risks.max()
    moves = np.linalg.norm(np.diff(chosen, axis=0), axis=1)
    jacobian_changes = np.linalg.norm(np.diff(jacobians, axis=0), 2, axis=(-2, -1)).max(1)
    return Constants(
        F=float(np.linalg.norm(jacobians, 2, axis=(-2, -1)).max()),
        M=_largest_rate(jacobian_changes, moves),
        G=float(np.linalg.norm(draws["gradient"], axis=-1).max()),
        loss=float(np.abs(draws["loss"]).max()),
        L=_smoothness(draws, chosen),
        rho=float((slopes[far] / 2 / risks[far]).min()),
        singular=_smallest_singular(path, window),
        gamma=tuple(_sensitivities(draws["z"], chosen).tolist()),
        weights=tuple(np.asarray(problem.weights, float).tolist()),
        noise=float(draws["noise"].max() * math.log(2 / PHI)),
        start=float(risks[0]),
        d=path.shape[1],
    )


def _draws(problem: Problem, thetas: list[Any], n: int) -> dict[str, np.ndarray]:
    """Samples, losses, gradients and the variance of one sample's f: models x clients x n x ..."""

    def one(theta: Any, client: Any) -> dict[str, Any]:
        batch = problem.reaction.sample(random.seed_key(0), theta, client, n)
        weights = jnp.full(n, 1 / n)
        losses, gradients = jax.vmap(jax.value_and_grad(problem.loss), (None, 0))(theta, batch)
        f = problem.family.estimate(batch, weights)
        numbers = [jnp.reshape(leaf, (n, -1)).astype(jnp.float32) for leaf in jax.tree.leaves(batch)]
        return {
            "z": jnp.concatenate(numbers, axis=1),
            "loss": losses,
            "gradient": jax.vmap(trees.ravel)(gradients),
            "noise": n * jnp.max(problem.family.variance(batch, weights, f)),
        }

    clients = trees.to_device(problem.clients)
    of_clients = jax.jit(jax.vmap(one, (None, 0)))
    by_model = [of_clients(theta, clients) for theta in thetas]
    return {key: np.stack([np.asarray(entry[key], float) for entry in by_model]) for key in by_model[0]}


def _largest_rate(changes: np.ndarray, moves: np.ndarray) -> float:
    """The largest change per move; what is rounding counts as none."""
    counted = moves > LEAST_MOVE * moves.max()
    ratio = changes[counted] / moves[counted]
    return float(ratio.max()) if ratio.max() > LEAST_RATE else 0.0


def _smoothness(draws: dict[str, np.ndarray], models: np.ndarray) -> float:
    """The largest |change of grad l| over |move of theta| + |move of z|, between neighbouring models and samples."""
    gradient, z = draws["gradient"], draws["z"]
    change = np.linalg.norm(np.diff(gradient, axis=0), axis=-1)
    move = np.linalg.norm(np.diff(models, axis=0), axis=1)[:, None, None] + np.linalg.norm(np.diff(z, axis=0), axis=-1)
    across = np.linalg.norm(np.diff(gradient, axis=2), axis=-1) / np.linalg.norm(np.diff(z, axis=2), axis=-1)
    along = change[move > 1e-6] / move[move > 1e-6]
    return float(max(across.max(), along.max()))


def _sensitivities(z: np.ndarray, models: np.ndarray) -> np.ndarray:
    """gamma_i: the mean move of a sample over the move of the model, the largest over the run's neighbours."""
    sample_moves = np.linalg.norm(np.diff(z, axis=0), axis=-1).mean(-1)
    moves = np.linalg.norm(np.diff(models, axis=0), axis=1)[:, None]
    far = moves[:, 0] > 0.01 * moves.max()
    return (sample_moves[far] / moves[far]).max(0)


def _smallest_singular(path: np.ndarray, window: int) -> float:
    """Over all windows of the path: the smallest singular value of the differences from the newest point."""
    size = min(window, len(path) - 1)
    values = [
        np.linalg.svd((path[t - size : t] - path[t]).astype(float), compute_uv=False).min()
        for t in range(size, len(path))
    ]
    return float(max(min(values), 1e-12))
