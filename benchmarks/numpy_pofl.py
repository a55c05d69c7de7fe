"""Careful vectorised NumPy version of PoFL on pricing: the speed that profl has to beat.

All clients and seeds are batched, float32 throughout, the fast SFC64 generator writes into a buffer that is used
again, and the Jacobian comes from the normal equations (batched Cholesky-free ``solve`` of d x d). It does the same
work as ``profl.pofl``: draw, f_hat, window, least squares with intercept, both gradient terms, projected update,
averaging.
"""

from __future__ import annotations

import numpy as np


def run(
    clients: int, seeds: int, rounds: int, local_steps: int = 5, n: int = 500, d: int = 5, window: int = 20
) -> np.ndarray:
    """The final global models, seeds x d."""
    rng = np.random.Generator(np.random.SFC64(0))
    mu0 = rng.uniform(6, 7, d).astype(np.float32)
    gamma = np.linspace(1.0, 2.0, clients, dtype=np.float32)[None, :, None]
    theta = np.clip(0.5 * mu0 + rng.standard_normal((seeds, 1, d), dtype=np.float32), 0, 5)
    theta = np.repeat(theta, clients, axis=1)
    signals = np.zeros((window + 1, seeds, clients, d), np.float32)
    estimates = np.zeros_like(signals)
    last = np.zeros((seeds, clients, d, d), np.float32)
    eye = np.eye(d, dtype=np.float32)
    eta, noise = np.float32(0.01), np.float32(1 / n)
    ones = np.full(n, np.float32(1 / n))
    # One client-batch at a time: a block of all clients and seeds would leave the cache and cost three times as much.
    block = np.empty((n, d), np.float32)
    for t in range(rounds * local_steps):
        mean = mu0 - gamma * theta
        f = np.empty_like(mean)
        for s in range(seeds):
            for c in range(clients):
                rng.standard_normal(dtype=np.float32, out=block)
                f[s, c] = mean[s, c] + ones @ block
        row = t % (window + 1)
        signals[row], estimates[row] = theta, f
        filled = min(t + 1, window + 1)
        moves = signals[:filled] - signals[:filled].mean(0)
        changes = estimates[:filled] - estimates[:filled].mean(0)
        moves, changes = np.moveaxis(moves, 0, -2), np.moveaxis(changes, 0, -2)
        gram = np.swapaxes(moves, -1, -2) @ moves
        cross = np.swapaxes(moves, -1, -2) @ changes
        spread = np.trace(gram, axis1=-2, axis2=-1) + 1e-30
        beyond = np.maximum((changes**2).sum((-1, -2)) - (filled - 1) * d * noise, 0)
        tau2 = np.maximum(beyond / (d * spread), (last**2).mean((-1, -2))) + 1e-12
        ridge = (0.1 * noise / tau2)[..., None, None]
        damped = gram + (ridge + 1e-5 * spread[..., None, None] + 1e-30) * eye
        last = np.swapaxes(np.linalg.solve(damped, cross + ridge * np.swapaxes(last, -1, -2)), -1, -2)
        gradient = -f - np.einsum("scpk,scp->sck", last, theta)
        theta = np.clip(theta - eta * gradient, 0, 5)
        if (t + 1) % local_steps == 0:
            theta = np.repeat(theta.mean(1, keepdims=True), clients, axis=1)
    return theta[:, 0]
