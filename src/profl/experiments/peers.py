"""The same work done in other ways, for ``profl bench speed``: PoFL on pricing in NumPy, and Flower's simulation.

All of it is pricing with d goods: draw n samples per client and step, f_hat, the Jacobian from a window of H
deployments (least squares with intercept), both gradient terms, projected update, averaging after R steps.
"""

from __future__ import annotations

import importlib.util
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from profl import checks

D, N, R, WINDOW = 5, 500, 5, 20
RATE, NOISE = np.float32(0.01), np.float32(1 / N)


def numpy_batched(clients: int, seeds: int, rounds: int, threads: int = 1) -> np.ndarray:
    """Careful NumPy: clients and seeds batched, float32, SFC64 into a buffer that is used again; (seeds, d) models.

    Samples are drawn one client-batch at a time: a block of all clients would leave the cache and cost three times as
    much. With several threads each draws its part of the clients with a generator of its own.
    """
    mu0, gamma, theta = _start(clients, seeds)
    draw = [_Drawer(part) for part in range(threads)]
    rows = np.array_split(np.arange(seeds * clients), threads)
    window = _Window(seeds, clients)
    with ThreadPoolExecutor(threads) as pool:
        for t in range(rounds * R):
            f = mu0 - gamma * theta
            flat = f.reshape(-1, D)
            if threads == 1:
                draw[0].add(flat, rows[0])
            else:
                list(pool.map(lambda part, flat=flat: draw[part].add(flat, rows[part]), range(threads)))
            jacobian = window.fit(t, theta, f)
            theta = np.clip(theta - RATE * (-f - np.einsum("scpk,scp->sck", jacobian, theta)), 0, 5)
            if (t + 1) % R == 0:
                theta = np.repeat(theta.mean(1, keepdims=True), clients, axis=1)
    return theta[:, 0]


def numpy_loop(clients: int, rounds: int) -> np.ndarray:
    """The same, as it is first written: one seed, one client after the other, one small array at a time."""
    mu0, gamma, theta = _start(clients, 1)
    rng = np.random.default_rng(0)
    windows = [_Window(1, 1) for _ in range(clients)]
    model = theta[0, 0]
    for round_ in range(rounds):
        own = []
        for client in range(clients):
            price = model
            for r in range(R):
                z = mu0 - gamma[0, client] * price + rng.standard_normal((N, D), dtype=np.float32)
                f = z.mean(0)
                jacobian = windows[client].fit(round_ * R + r, price[None, None], f[None, None])[0, 0]
                price = np.clip(price - RATE * (-f - jacobian.T @ price), 0, 5)
            own.append(price)
        model = np.mean(own, axis=0)
    return model


class _Drawer:
    """One thread's generator and buffer."""

    def __init__(self, part: int) -> None:
        self.rng = np.random.Generator(np.random.SFC64(part))
        self.block = np.empty((N, D), np.float32)
        self.weights = np.full(N, np.float32(1 / N))

    def add(self, means: np.ndarray, rows: np.ndarray) -> None:
        """Add the mean of n fresh normals to the given rows."""
        for row in rows:
            self.rng.standard_normal(dtype=np.float32, out=self.block)
            means[row] += self.weights @ self.block


class _Window:
    """The last deployments of every client, and least squares with intercept over them (normal equations)."""

    def __init__(self, seeds: int, clients: int) -> None:
        self.signals = np.zeros((WINDOW + 1, seeds, clients, D), np.float32)
        self.estimates = np.zeros_like(self.signals)
        self.last = np.zeros((seeds, clients, D, D), np.float32)

    def fit(self, t: int, theta: np.ndarray, f: np.ndarray) -> np.ndarray:
        row, filled = t % (WINDOW + 1), min(t + 1, WINDOW + 1)
        self.signals[row], self.estimates[row] = theta, f
        moves, changes = (
            np.moveaxis(kept[:filled] - kept[:filled].mean(0), 0, -2) for kept in (self.signals, self.estimates)
        )
        gram = np.swapaxes(moves, -1, -2) @ moves
        cross = np.swapaxes(moves, -1, -2) @ changes
        spread = np.trace(gram, axis1=-2, axis2=-1) + 1e-30
        beyond = np.maximum((changes**2).sum((-1, -2)) - (filled - 1) * D * NOISE, 0)
        tau2 = np.maximum(beyond / (D * spread), (self.last**2).mean((-1, -2))) + 1e-12
        ridge = (0.1 * NOISE / tau2)[..., None, None]
        damped = gram + (ridge + 1e-5 * spread[..., None, None] + 1e-30) * np.eye(D, dtype=np.float32)
        solved = np.linalg.solve(damped, cross + ridge * np.swapaxes(self.last, -1, -2))
        self.last = np.swapaxes(solved, -1, -2)
        return self.last


def _start(clients: int, seeds: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    mu0 = rng.uniform(6, 7, D).astype(np.float32)
    gamma = np.linspace(1.0, 2.0, clients, dtype=np.float32)[None, :, None]
    theta = np.clip(0.5 * mu0 + rng.standard_normal((seeds, 1, D), dtype=np.float32), 0, 5)
    return mu0, gamma, np.repeat(theta, clients, axis=1)


def has_flower() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("flwr", "ray"))


def flower(clients: int, rounds: int) -> float:
    """Seconds that Flower's simulation (Ray, one CPU per client) takes for this work, its start-up left out.

    The client does the plain NumPy step, with a window that begins anew every round; the strategy is FedAvg.
    """
    if not has_flower():
        raise checks.FailedError("flower needs the packages flwr and ray: pip install 'profl[flower]'")
    from flwr.client import ClientApp, NumPyClient
    from flwr.common import ndarrays_to_parameters
    from flwr.server import ServerApp, ServerAppComponents, ServerConfig
    from flwr.server.strategy import FedAvg
    from flwr.simulation import run_simulation

    mu0, gamma, theta = _start(clients, 1)

    class Retailer(NumPyClient):
        def __init__(self, number: int) -> None:
            self.number, self.window = number, _Window(1, 1)
            self.rng = np.random.default_rng(number)

        def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> Any:
            price = parameters[0]
            for r in range(R):
                z = mu0 - gamma[0, self.number] * price + self.rng.standard_normal((N, D), dtype=np.float32)
                f = z.mean(0)
                jacobian = self.window.fit(r, price[None, None], f[None, None])[0, 0]
                price = np.clip(price - RATE * (-f - jacobian.T @ price), 0, 5)
            return [price], N, {}

    started: list[float] = []

    def mark(round_: int, *_: Any) -> None:
        started.append(time.perf_counter())

    def server(context: Any) -> ServerAppComponents:
        strategy = FedAvg(
            fraction_evaluate=0.0,
            min_fit_clients=clients,
            min_available_clients=clients,
            initial_parameters=ndarrays_to_parameters([theta[0, 0]]),
            evaluate_fn=mark,
        )
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=rounds + 1))

    app = ClientApp(client_fn=lambda context: Retailer(int(context.node_config["partition-id"])).to_client())
    run_simulation(ServerApp(server_fn=server), app, clients, backend_config={"client_resources": {"num_cpus": 1}})
    return started[-1] - started[-1 - rounds]
