"""Bayesian optimisation with BoTorch: of the observed loss, and composite, of a known loss of an unknown f.

All clients deploy the same model. After the start and Sobol points, the next is where qLogNEI (Ament et al., 2023) is
largest. ``Scalar`` models the federation's mean loss; ``Composite`` (Astudillo and Frazier, 2019) models f(theta), of
every client where the loss is curved in f, and puts the known loss on top: the acquisition's samples are of f. Gaussian
processes are BoTorch's own (RBF, a length scale per parameter, priors scaled by the dimension), on standardised
outcomes with the sampling variance that each observation has.

Needs BoTorch; ``benchmarks.rivals.bench`` looks whether it is there before it imports this.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.acquisition.objective import GenericMCObjective
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.mlls import ExactMarginalLogLikelihood

from benchmarks.rivals.federation import Seen
from benchmarks.rivals.moved_risk import MovedRisk

FIRST = 10
"""Sobol points before the model is asked, at most: two per parameter, and a third of all."""
SAMPLES, RESTARTS, RAW = 64, 4, 64
"""Of the acquisition: posterior samples, descents, and models among which these begin."""
FIT_STEPS, DESCENT_STEPS = 75, 30
"""L-BFGS steps of a fit, which begins where the last one ended, and of a descent of the acquisition."""
LEAST_NOISE = 1e-6
"""Variance of an observation as a share of all, below which a covariance matrix cannot be factored safely."""


class Design(NamedTuple):
    """The Sobol points before the model is asked."""

    times: int = 2  # as many per parameter
    reach: float = 1.0  # how far from the start, as a share of the model space


DESIGNS = {"Sobol": Design(), "Sobol near the start": Design(1, 0.1)}
"""What is tried."""


class Bayes:
    """One run; subclasses say what is modelled and what the risk is of that."""

    def __init__(self, start: np.ndarray, clients: int, rounds: int, seed: int, design: Design) -> None:
        self.clients, self.seed = clients, seed
        first = min(FIRST, design.times * start.size, rounds // 3)
        sobol = torch.quasirandom.SobolEngine(start.size, scramble=True, seed=seed).draw(first, dtype=torch.double)
        lower, upper = (np.clip(start + side * design.reach, 0.0, 1.0) for side in (-1, 1))
        self.planned = [start, *(lower + sobol.numpy() * (upper - lower))]
        self.tried: list[np.ndarray] = []
        self.values: list[np.ndarray] = []
        self.variances: list[np.ndarray] = []
        self.state: dict[str, Any] | None = None
        self.best = {"tried": start, "modelled": start}

    def models(self) -> np.ndarray:
        self.tried.append(self.planned.pop(0))
        return np.tile(self.tried[-1], (self.clients, 1))

    def returned(self) -> dict[str, np.ndarray]:
        return self.best

    def see(self, seen: Seen) -> None:
        value, variance = self.summary(seen)
        self.values.append(value)
        self.variances.append(variance)
        if len(self.values) < 2:
            return
        torch.manual_seed(self.seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of fits and descents that end at their limit of steps
            self._learn()

    def summary(self, seen: Seen) -> tuple[np.ndarray, np.ndarray]:
        """What is modelled, (m,), and its sampling variance."""
        raise NotImplementedError

    def risks(self, samples: torch.Tensor, x: torch.Tensor, whole: bool = False) -> torch.Tensor:
        """The risk of posterior samples (..., q, m) at models (..., q, d)."""
        raise NotImplementedError

    def _learn(self) -> None:
        x = torch.tensor(np.stack(self.tried))
        y, variance = torch.tensor(np.stack(self.values)), torch.tensor(np.stack(self.variances))
        variance = torch.maximum(variance, LEAST_NOISE * y.var(0) + 1e-12)
        model = SingleTaskGP(x, y, variance, outcome_transform=Standardize(y.shape[-1]))
        if self.state is not None:
            model.load_state_dict(self.state, strict=False)
        fit_gpytorch_mll(
            ExactMarginalLogLikelihood(model.likelihood, model), optimizer_kwargs={"options": {"maxiter": FIT_STEPS}}
        )
        self.state = {name: each for name, each in model.state_dict().items() if "raw_" in name or "mean_mod" in name}
        self._choose(model, x)

    def _choose(self, model: Any, x: torch.Tensor) -> None:
        def plug_in(at: torch.Tensor) -> torch.Tensor:
            """Minus the risk at the posterior mean, of (b, 1, d)."""
            return -self.risks(model.posterior(at).mean, at, whole=True).squeeze(-1)

        with torch.no_grad():
            tried = self.tried[int(plug_in(x[:, None]).argmax())]
        modelled = maximise(plug_in, np.stack([tried, self.best["modelled"], *self._scattered(2)]))
        self.best = {"tried": tried, "modelled": modelled}
        if self.planned:
            return
        objective = GenericMCObjective(lambda samples, X: -self.risks(samples, X))
        sampler = SobolQMCNormalSampler(torch.Size([SAMPLES]), seed=self.seed)
        acquisition = qLogNoisyExpectedImprovement(model, x, sampler, objective, prune_baseline=False)
        bounds = torch.tensor([[0.0], [1.0]], dtype=torch.double).expand(2, x.shape[1])
        found, _ = optimize_acqf(
            acquisition,
            bounds,
            q=1,
            num_restarts=RESTARTS,
            raw_samples=RAW,
            options={"maxiter": DESCENT_STEPS, "sample_around_best": True, "seed": self.seed + len(self.tried)},
        )
        self.planned.append(found[0].numpy())

    def _scattered(self, count: int) -> np.ndarray:
        return np.random.default_rng([self.seed, len(self.tried)]).uniform(size=(count, self.tried[0].size))


def maximise(function: Callable[[torch.Tensor], torch.Tensor], starts: np.ndarray) -> np.ndarray:
    """Where a function of (b, 1, d) is largest in the unit cube, by descents from ``starts`` (b, d)."""
    from scipy.optimize import minimize

    def valued(flat: np.ndarray) -> tuple[float, np.ndarray]:
        at = torch.tensor(flat.reshape(starts.shape), requires_grad=True)
        value = -function(at[:, None]).sum()
        value.backward()
        assert at.grad is not None
        return float(value), at.grad.numpy().ravel()

    bounds = [(0.0, 1.0)] * starts.size
    end = minimize(
        valued, starts.ravel(), jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": DESCENT_STEPS}
    )
    end = end.x.reshape(starts.shape)
    both = np.concatenate([starts, end])
    with torch.no_grad():
        return both[int(function(torch.tensor(both)[:, None]).argmax())]


class Scalar(Bayes):
    """The federation's observed mean loss."""

    def __init__(self, start: np.ndarray, weights: np.ndarray, rounds: int, seed: int, design: Design) -> None:
        super().__init__(start, len(weights), rounds, seed, design)
        self.weights = weights

    def summary(self, seen: Seen) -> tuple[np.ndarray, np.ndarray]:
        return np.array([self.weights @ seen.loss]), np.array([self.weights**2 @ seen.loss_variance])

    def risks(self, samples: torch.Tensor, x: torch.Tensor, whole: bool = False) -> torch.Tensor:
        return samples[..., 0]


class Composite(Bayes):
    """f of every client, or of all where that says as much, and the known loss on top."""

    def __init__(self, start: np.ndarray, risk: MovedRisk, rounds: int, seed: int, design: Design) -> None:
        super().__init__(start, len(risk.weights), rounds, seed, design)
        self.risk = risk

    def summary(self, seen: Seen) -> tuple[np.ndarray, np.ndarray]:
        f, variance = self.risk.see(seen)
        self.shape = f.shape
        return f.ravel(), variance.ravel()

    def risks(self, samples: torch.Tensor, x: torch.Tensor, whole: bool = False) -> torch.Tensor:
        lower, upper = (torch.tensor(end) for end in self.risk.box)
        theta = (lower + x * (upper - lower)).expand(*samples.shape[:-1], x.shape[-1])
        flat = theta.reshape(-1, x.shape[-1]), samples.reshape(-1, *self.shape)
        return _Risk.apply(*flat, self.risk, whole).reshape(samples.shape[:-1])


class _Risk(torch.autograd.Function):
    """A ``MovedRisk``, which JAX differentiates, for PyTorch."""

    @staticmethod
    def forward(ctx: Any, theta: torch.Tensor, f: torch.Tensor, risk: MovedRisk, whole: bool) -> torch.Tensor:
        found = risk(theta.detach().numpy(), f.detach().numpy(), whole, slopes=any(ctx.needs_input_grad))
        value, *slopes = (torch.from_numpy(each.copy()) for each in found)
        ctx.save_for_backward(*slopes)
        return value

    @staticmethod
    def backward(ctx: Any, *given: torch.Tensor) -> Any:
        of_theta, of_f = ctx.saved_tensors
        return given[0][:, None] * of_theta, given[0][:, None, None] * of_f, None, None
