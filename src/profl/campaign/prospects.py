"""What past deployments promise: the optimum by their slopes, how uncertain it is, and whether an experiment pays.

    L(theta; J) = sum_i alpha_i mean_j l(z_ij moved to f_i + J (theta - mean theta_i); theta)      pooled slopes J
    C = G diag(V) G',  G = d^2 L / dtheta dJ,  V = error^2 + (belief size)^2
    expected excess of the optimum by the history  =  tr(H^-1 C) / 2

An experiment perturbs every number of the model up and down at random, by h_j = t / sqrt(H_jj), so that each costs the
same: n deployments cost n t^2 d / 2 and add n clients h_j^2 / noise_k to the precision of every slope. t is the best
one over the deployments that follow.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from scipy import special

from profl import trees
from profl.campaign.past import PastTable, models
from profl.methods.prm import PastDeployments
from profl.methods.prm.newton import inactive_bounds, positive_eigenvalues
from profl.methods.prm.past import estimates, signals
from profl.problem.problem import Problem
from profl.typing import Array, Batch

SAMPLES = 4096
"""Samples that the risk is computed from, at most; evenly taken."""
STEPS = 300
"""Steps of the projected gradient method, at most."""
SIZES = np.geomspace(1e-3, 10.0, 81)
"""Sizes of a perturbation that are tried, as shares of the one whose cost is what the present policy loses."""
EXPERIMENTS = 5, 10, 30


class Experiment(NamedTuple):
    """What an experiment of so many deployments brings, in units of the loss."""

    deployments: int
    gain: float  # expected, a deployment afterwards, beside the optimum by the history
    cost: float  # of all its perturbations together
    net: float  # gain over the deployments that follow, less the cost


class Prospects(NamedTuple):
    """What past deployments promise."""

    present: np.ndarray  # (d,): the model that is deployed now
    optimum: np.ndarray  # (d,): by the history
    error: np.ndarray  # (d,): standard deviation of the optimum
    held: np.ndarray  # (d,) bool: whether the model space holds it
    seen: np.ndarray  # (2, d): least and largest in the history
    gain: float  # of the optimum over the present model, a deployment
    gain_error: float
    excess: float  # expected, of the optimum by the history over the true one
    follows: int  # deployments that follow
    experiments: list[Experiment]

    @property
    def pays(self) -> Experiment | None:
        """The experiment with the largest net gain; None where none has any."""
        best = self.experiments[int(np.argmax([one.net for one in self.experiments]))]
        return best if best.net > 0 else None


def slope_error(past: PastDeployments, quantile: float = 0.975) -> tuple[np.ndarray, np.ndarray]:
    """(half the width of the pooled slopes' interval by the data alone, and with the bias that is believed), (p, s).

    The first by Student's t with as many degrees of freedom as there are clusters, less one.
    """
    times = float(special.stdtrit(max(past.clusters - 1, 1), quantile))
    by_data, bias = times * past.pooled_error, special.ndtri(quantile) * past.belief * past.pooled
    return by_data, np.sqrt(by_data**2 + bias**2)


def slope_variance(past: PastDeployments) -> np.ndarray:
    """The variance of the pooled slopes with the bias that is believed, (p, s)."""
    return np.asarray(past.pooled_error**2 + (past.belief * past.pooled) ** 2)


def prospects(problem: Problem, table: PastTable, past: PastDeployments, follows: int = 52) -> Prospects:
    """What the history promises beside the problem's first model, for ``follows`` deployments after an experiment."""
    like = trees.take(trees.to_device(problem.initial_models((0,))), 0)
    flat, unravel = ravel_pytree(like)
    d = flat.size
    risk = risk_of(problem, table, like)
    slopes = jnp.asarray(past.pooled.ravel(), float)

    def project(vector: Array) -> Array:
        return trees.ravel(problem.project(unravel(vector)))

    spread = np.maximum(table.theta.std(0), 1e-6 * np.abs(table.theta).mean(0) + np.finfo(np.float32).tiny)
    best = minimise(jax.jit(jax.value_and_grad(risk)), jax.jit(project), flat, jnp.asarray(spread, float), slopes)

    @jax.jit
    def derivatives(best: Array) -> tuple[Array, ...]:
        gradient = jax.grad(risk)
        at_both = [jax.value_and_grad(risk, argnums=1)(model, slopes) for model in (flat, best)]
        (here, by_slope_here), (there, by_slope_there) = at_both
        curvature, cross = jax.jacfwd(gradient)(best, slopes), jax.jacrev(gradient, argnums=1)(best, slopes)
        free = inactive_bounds(gradient(best, slopes), best, project)
        return gradient(best, slopes), curvature, cross, free, here - there, by_slope_here - by_slope_there

    gradient, curvature, cross, free, gain, by_slope = (np.asarray(part) for part in derivatives(best))
    unit = np.asarray(spread)  # so that a floor on eigenvalues does not depend on units
    scaled = curvature * unit[:, None] * unit * free[:, None] * free
    axes, values = (np.asarray(part) for part in positive_eigenvalues(jnp.asarray(scaled), jnp.asarray(0 * gradient)))
    inverse = (axes / values) @ axes.T * free[:, None] * free * unit[:, None] * unit
    sensitivity = cross.reshape(d, -1)
    variance = slope_variance(past).ravel()

    def excess(variance: np.ndarray) -> float:
        return float(np.trace(inverse @ (sensitivity * variance) @ sensitivity.T)) / 2

    jacobian = np.asarray(jax.jacfwd(lambda vector: problem.signal(unravel(vector)))(best))  # (s, d)
    steepness = np.maximum(np.abs(np.diagonal(curvature)), values.min() / unit**2) * free

    def experiment(n: int) -> Experiment:
        tries: list[tuple[float, float]] = []
        for size in SIZES * np.sqrt(2 * max(float(gain), excess(variance), 1e-30) / d):
            move = np.where(free, size / np.sqrt(np.where(free, steepness, 1.0)), 0.0)
            shown = n * problem.count * (jacobian**2 @ move**2) / past.noise[:, None]  # (p, s)
            left = 1 / (1 / np.maximum(variance, np.finfo(float).tiny) + shown.reshape(-1))
            cost = n * float(steepness @ move**2) / 2
            tries.append((excess(variance) - excess(left), cost))
        each, cost = tries[int(np.argmax([follows * gain - cost for gain, cost in tries]))]
        return Experiment(n, each, cost, follows * each - cost)

    return Prospects(
        present=np.asarray(flat, float),
        optimum=np.asarray(best, float),
        error=np.sqrt(np.maximum(np.diagonal(inverse @ (sensitivity * variance) @ sensitivity.T @ inverse), 0.0)),
        held=~free,
        seen=np.stack([table.theta.min(0), table.theta.max(0)]),
        gain=float(gain),
        gain_error=float(np.sqrt(by_slope**2 @ variance)),
        excess=excess(variance),
        follows=follows,
        experiments=[experiment(n) for n in EXPERIMENTS],
    )


def risk_of(problem: Problem, table: PastTable, like: Any) -> Any:
    """``risk(theta, slopes)`` of a flat model, from the samples of the past, moved to where slopes (p s,) have f."""
    family, unravel = problem.family, ravel_pytree(like)[1]
    sizes = np.array([trees.rows(batch) for batch in table.batches])
    x = signals(problem, models(table.theta, like))
    f = estimates(problem, table.batches)
    centre, level = (client_means(rows, table.client, problem.count) for rows in (x, f))
    owner = np.repeat(np.arange(len(sizes)), sizes)
    chosen = np.linspace(0, owner.size - 1, min(owner.size, SAMPLES)).astype(int)
    stacked = jax.tree.map(lambda *leaves: np.concatenate(leaves)[chosen], *table.batches)
    owner, batch = owner[chosen], trees.to_device(stacked)
    client = table.client[owner]
    share = (
        np.asarray(problem.weights, float)[client] / np.maximum(np.bincount(client, minlength=problem.count), 1)[client]
    )
    share, origin = jnp.asarray(share / share.sum(), float), jnp.asarray(f[owner], float)
    x_of, f_of = jnp.asarray(centre, float), jnp.asarray(level, float)

    def risk(flat: Array, slopes: Array) -> Array:
        theta = unravel(flat)
        here = f_of + (problem.signal(theta) - x_of) @ slopes.reshape(f.shape[1], -1).T  # (clients, p)
        there = here[client]
        if family.shift is not None:
            moved = jax.vmap(lambda z, now, old: problem.loss(theta, family.apply_shift(z, now - old, old)))
            return share @ moved(batch, there, origin)

        def log_ratio(z: Batch, now: Array, old: Array) -> Array:
            return family.log_prob(z, now) - family.log_prob(z, old)

        ratio = share * jnp.exp(jax.vmap(log_ratio)(batch, there, origin))
        return ratio @ jax.vmap(problem.loss, (None, 0))(theta, batch) / jnp.sum(ratio)

    return risk


def client_means(rows: np.ndarray, client: np.ndarray, count: int) -> np.ndarray:
    """The means (count, k) of each client's rows (N, k); of a client without rows, that of all."""
    means = np.tile(rows.mean(0), (count, 1))
    for number in np.unique(client):
        means[number] = rows[client == number].mean(0)
    return means


def minimise(risk: Any, project: Any, start: Array, unit: Array, slopes: Array) -> Array:
    """Where ``risk`` is least in the model space, by projected gradient steps of Barzilai and Borwein's length."""
    at = start
    value, gradient = risk(at, slopes)
    step = 1.0 / float(jnp.max(jnp.abs(gradient * unit)) + jnp.finfo(gradient.dtype).tiny)
    for _ in range(STEPS):
        for _ in range(30):
            new = project(at - step * unit**2 * gradient)
            moved = (new - at) / unit
            new_value, new_gradient = risk(new, slopes)
            if new_value <= value - 1e-4 / step * float(moved @ moved):
                break
            step /= 2
        else:
            return at
        change = (new_gradient - gradient) * unit
        done = float(jnp.max(jnp.abs(moved))) < 1e-4
        curvature = float(moved @ change)
        step = float(moved @ moved) / curvature if curvature > 0 else 4 * step
        at, value, gradient = new, new_value, new_gradient
        if done:
            break
    return at
