"""The same work done in other ways, for the benchmark ``speed``: PoFL on pricing in NumPy, in Flower's simulation and
in pfl-research.

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
LOWEST, HIGHEST = 0, 5
"""Prices, as in ``profl.cases.pricing``; so are mu0 in U(6, 7) and sensitivities around 1.5."""
HOLD, FLOOR = 0.1, 1e-5
"""The ridge of ``LeastSquares``: how strongly the last estimate holds, and the least part of the trace."""
NO_MOVE, NO_SIZE = 1e-30, 1e-12
"""Added where a division by a window that has not moved, or by a Jacobian that is still zero, would fail."""


def numpy_batched(clients: int, seeds: int, rounds: int, threads: int = 1) -> np.ndarray:
    """Careful NumPy: clients and seeds batched, float32, SFC64 into a buffer that is used again; (seeds, d) models.

    Every thread does the R steps of its part of the clients; they meet once a round.
    """
    mu0, gamma, theta = _start(clients, seeds)
    sensitivity = np.broadcast_to(gamma, (seeds, clients, 1)).reshape(-1, 1)
    parts = np.array_split(np.arange(seeds * clients), threads)
    shares = [_Share(mu0, sensitivity[rows], number) for number, rows in enumerate(parts)]
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(rounds):
            flat = theta.reshape(-1, D)
            own = pool.map(lambda share, rows, flat=flat: share.steps(flat[rows]), shares, parts)
            means = np.concatenate(list(own)).reshape(seeds, clients, D).mean(1, keepdims=True)
            theta = np.repeat(means, clients, axis=1)
    return theta[:, 0]


def numpy_loop(clients: int, rounds: int) -> np.ndarray:
    """The same, as it is first written: one seed, one client after the other, one small array at a time."""
    mu0, gamma, theta = _start(clients, 1)
    retailers = [Retailer(mu0, gamma[0, client], client) for client in range(clients)]
    model = theta[0, 0]
    for _ in range(rounds):
        model = np.mean([retailer.steps(model) for retailer in retailers], axis=0)
    return model


class Retailer:
    """One client that does its R steps in plain NumPy and remembers its deployments."""

    def __init__(self, mu0: np.ndarray, gamma: np.ndarray, seed: int) -> None:
        self.mu0, self.gamma, self.rng = mu0, gamma, np.random.default_rng(seed)
        self.window, self.done = _Window(1), 0

    def steps(self, price: np.ndarray) -> np.ndarray:
        for _ in range(R):
            z = self.mu0 - self.gamma * price + self.rng.standard_normal((N, D), dtype=np.float32)
            f = z.mean(0)
            jacobian = self.window.fit(self.done, price[None], f[None])[0]
            price = np.clip(price - RATE * (-f - jacobian.T @ price), LOWEST, HIGHEST)
            self.done += 1
        return price


class _Share:
    """One thread's clients, with a generator and a buffer of its own.

    Samples are drawn one client-batch at a time: a block of all clients would leave the cache and cost three times as
    much.
    """

    def __init__(self, mu0: np.ndarray, gamma: np.ndarray, number: int) -> None:
        self.mu0, self.gamma, self.done = mu0, gamma, 0
        self.rng = np.random.Generator(np.random.SFC64(number))
        self.block = np.empty((N, D), np.float32)
        self.weights = np.full(N, np.float32(1 / N))
        self.window = _Window(len(gamma))

    def steps(self, theta: np.ndarray) -> np.ndarray:
        for _ in range(R):
            f = self.mu0 - self.gamma * theta
            for row in f:
                self.rng.standard_normal(dtype=np.float32, out=self.block)
                row += self.weights @ self.block
            jacobian = self.window.fit(self.done, theta, f)
            theta = np.clip(theta - RATE * (-f - np.einsum("cpk,cp->ck", jacobian, theta)), LOWEST, HIGHEST)
            self.done += 1
        return theta


class _Window:
    """The last deployments of every client, and least squares with intercept over them (normal equations)."""

    def __init__(self, clients: int) -> None:
        self.signals = np.zeros((WINDOW + 1, clients, D), np.float32)
        self.estimates = np.zeros_like(self.signals)
        self.last = np.zeros((clients, D, D), np.float32)

    def fit(self, t: int, theta: np.ndarray, f: np.ndarray) -> np.ndarray:
        row, filled = t % (WINDOW + 1), min(t + 1, WINDOW + 1)
        self.signals[row], self.estimates[row] = theta, f
        moves, changes = (
            np.moveaxis(kept[:filled] - kept[:filled].mean(0), 0, -2) for kept in (self.signals, self.estimates)
        )
        gram = np.swapaxes(moves, -1, -2) @ moves
        cross = np.swapaxes(moves, -1, -2) @ changes
        trace = np.trace(gram, axis1=-2, axis2=-1) + NO_MOVE
        beyond = np.maximum((changes**2).sum((-1, -2)) - (filled - 1) * D * NOISE, 0)
        tau2 = np.maximum(beyond / (D * trace), (self.last**2).mean((-1, -2))) + NO_SIZE
        ridge = (HOLD * NOISE / tau2)[..., None, None]
        damped = gram + (ridge + FLOOR * trace[..., None, None] + NO_MOVE) * np.eye(D, dtype=np.float32)
        solved = np.linalg.solve(damped, cross + ridge * np.swapaxes(self.last, -1, -2))
        self.last = np.swapaxes(solved, -1, -2)
        return self.last


def _start(clients: int, seeds: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    mu0 = rng.uniform(6, 7, D).astype(np.float32)
    gamma = np.linspace(1.0, 2.0, clients, dtype=np.float32)[None, :, None]
    theta = np.clip(0.5 * mu0 + rng.standard_normal((seeds, 1, D), dtype=np.float32), LOWEST, HIGHEST)
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

    class Client(NumPyClient):
        def __init__(self, number: int) -> None:
            self.retailer = Retailer(mu0, gamma[0, number], number)

        def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> Any:
            return [self.retailer.steps(parameters[0])], N, {}

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

    app = ClientApp(client_fn=lambda context: Client(int(context.node_config["partition-id"])).to_client())
    run_simulation(ServerApp(server_fn=server), app, clients, backend_config={"client_resources": {"num_cpus": 1}})
    return started[-1] - started[-1 - rounds]


def has_pfl_research() -> bool:
    return importlib.util.find_spec("pfl") is not None


def pfl_research(clients: int, rounds: int) -> float:
    """Seconds that pfl-research's simulation takes for this work in one process; clients remember their deployments."""
    if not has_pfl_research():
        raise checks.FailedError("pfl_research needs the package pfl: pip install 'profl[peers]'")
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import FederatedAlgorithm
    from pfl.common_types import Population
    from pfl.context import CentralContext
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import AlgorithmHyperParams, ModelHyperParams
    from pfl.internal.ops import numpy_ops
    from pfl.internal.ops.selector import set_framework_module
    from pfl.metrics import Metrics
    from pfl.model.base import Model
    from pfl.stats import MappedVectorStatistics

    set_framework_module(numpy_ops)
    mu0, gamma, theta = _start(clients, 1)
    retailers = [Retailer(mu0, gamma[0, client], client) for client in range(clients)]

    class Prices(Model):
        value = theta[0, 0]

        def apply_model_update(self, statistics: Any) -> Any:
            self.value = statistics["price"] / statistics.weight
            return self, Metrics()

    class Rounds(FederatedAlgorithm):
        def get_next_central_contexts(self, model: Any, iteration: int, *params: Any) -> Any:
            if iteration == rounds:
                return None, model, Metrics()
            context = CentralContext(
                current_central_iteration=iteration,
                do_evaluation=False,
                cohort_size=clients,
                population=Population.TRAIN,
                model_train_params=ModelHyperParams(),
                algorithm_params=AlgorithmHyperParams(),
            )
            return (context,), model, Metrics()

        def simulate_one_user(self, model: Any, user: Any, context: Any) -> Any:
            price = retailers[int(user.user_id)].steps(model.value)
            return MappedVectorStatistics({"price": price}, weight=1), Metrics()

        def process_aggregated_statistics(self, context: Any, metrics: Any, model: Any, statistics: Any) -> Any:
            return model.apply_model_update(statistics)

    def shop(user: int) -> Any:
        return Dataset(raw_data=[np.zeros(1)], user_id=str(user))

    everyone = FederatedDataset(shop, get_user_sampler("minimize_reuse", range(clients)))
    backend = SimulatedBackend(training_data=everyone, val_data=everyone)
    started = time.perf_counter()
    Rounds().run(
        AlgorithmHyperParams(), backend, Prices(), model_train_params=ModelHyperParams(), send_metrics_to_platform=False
    )
    return time.perf_counter() - started
