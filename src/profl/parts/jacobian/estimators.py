"""Estimators of df/dsignal from a window of deployments (paper, Algorithm 1, line 13).

``JacobianEstimator`` is their contract. Here are the paper's estimator and a ridge regression over a window; ``kalman``
and ``tracking`` need no window. The window holds the last H deployments before the current one, and the current one:
H + 1 points, newest last.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.scipy.linalg import cho_factor, cho_solve

from profl.checks import InputError, one_of, positive_int
from profl.parts.jacobian.estimator import JacobianEstimator
from profl.parts.jacobian.kalman import Kalman
from profl.parts.jacobian.tracking import Tracking
from profl.typing import Array

LEAST_RIDGE = 1e-5
"""Least ridge, as a share of the trace, with which single precision (1e-7) solves the normal equations, however small
the window's moves are: their condition number is then at most 1e5, which leaves two digits."""

LEAST_RIDGE_TINY = 1e6
"""Times the smallest normal number: the ridge of a window without any moves, so that nothing is divided by zero."""

WINDOW_NOISE_RATE = 0.1
"""Weight of the newest batch in the mean sampling variance, which so averages about ten. It changes slowly, if at all.
"""

HOLD_SHARE = 0.1
"""Share of the penalty that tau^2 suggests with which the fit is held to the last estimate; see ``LeastSquares``."""

LEAST_TAU2 = 1e-12
"""Least tau^2, where neither window nor last estimate show any: then the ridge is as strong as it gets."""


class Window(NamedTuple):
    """The signals and f_hat of the last deployments, newest last."""

    signals: Array  # (H + 1, s)
    estimates: Array  # (H + 1, p)
    filled: Array  # how many rows hold data, () int32


def empty_window(rows: int, signal: Array, f: Array) -> Window:
    """A window of ``rows`` empty rows; ``signal`` and ``f`` give shapes and types."""
    zeros = jnp.zeros((rows, signal.shape[0]), signal.dtype), jnp.zeros((rows, f.shape[0]), f.dtype)
    return Window(*zeros, jnp.zeros((), jnp.int32))


def append_row(window: Window, signal: Array, f: Array) -> Window:
    """The window with one more row at its end and the oldest gone."""
    return Window(
        jnp.concatenate([window.signals[1:], signal[None]]),
        jnp.concatenate([window.estimates[1:], f[None]]),
        jnp.minimum(window.filled + 1, window.signals.shape[0]),
    )


@dataclass(frozen=True)
class Differences(JacobianEstimator):
    """The paper's estimator (Eq. 7): Delta f (Delta theta)^+, differences taken from the newest point.

    Zero until the window is full (Algorithm 1, line 6). The pseudo-inverse comes from the normal equations with a
    ridge of 1e-5 of their trace, on whichever side is smaller: a batched SVD would cost more than the rest of the
    step.
    """

    window: int = 20

    def __post_init__(self) -> None:
        positive_int("window", self.window)

    def init(self, signal: Array, f: Array) -> Window:
        return empty_window(self.window + 1, signal, f)

    def update(self, state: Window, signal: Array, f: Array, variance: Array, at: Array) -> Window:
        return append_row(state, signal, f)

    def estimate(self, state: Window) -> Array:
        moves = state.signals[:-1] - state.signals[-1]
        changes = state.estimates[:-1] - state.estimates[-1]
        if moves.shape[0] >= moves.shape[1]:
            gram = moves.T @ moves
            jacobian = solve_ridge(gram, moves.T @ changes, relative_floor(gram)).T
        else:
            gram = moves @ moves.T
            jacobian = changes.T @ solve_ridge(gram, moves, relative_floor(gram))
        return jnp.where(state.filled == moves.shape[0] + 1, jacobian, 0.0)

    def error(self, state: Window) -> Array:
        """The squared error (p, s) from the residuals, as of least squares; without the newest point's noise."""
        moves = state.signals[:-1] - state.signals[-1]
        left = state.estimates[:-1] - state.estimates[-1] - moves @ self.estimate(state).T
        noise = jnp.sum(left**2, 0) / max(moves.shape[0] - moves.shape[1], 1)
        gram = moves.T @ moves
        return noise[:, None] * inverse_diagonal(gram, relative_floor(gram))


class RegressionState(NamedTuple):
    """The state of ``LeastSquares``."""

    window: Window
    jacobian: Array  # the last estimate, (p, s)
    noise: Array  # mean sampling variance of an entry of f_hat, ()
    ridge: Array  # of the last fit, ()


@dataclass(frozen=True)
class LeastSquares(JacobianEstimator):
    """Least squares with intercept over the window, held to the last estimate by a ridge as strong as the noise says.

        minimise  |F - S J^T|^2 / v + |J - J_last|^2 / (10 tau^2)      (rows of F and S centred on the window's mean)

    The intercept keeps the newest point's noise out of all other rows (with differences from the newest point they
    share it). v is the sampling variance of f_hat, which the batch shows; tau^2 is the mean square of an entry of J,
    from the changes in the window beyond noise, or from J_last. Where the window covers a direction, the data decide;
    where it does not (it collapses as a run converges), the last estimate stays, and a short window does not explode:
    pricing, H = 4, eta = 0.01, n = 500 ends 0.07 above the optimum where plain least squares ends 1.1 and differences
    end 1.3 above it.

    The factor 10 lets J move: with 1, a run without noise of its own can come to rest on a wrong J that its window,
    by then a point, never contradicts (pg on pricing: one seed of ten ends 11 above the optimum; with 10 the worst
    ends 0.09 above it).
    """

    window: int = 20

    def __post_init__(self) -> None:
        positive_int("window", self.window)

    def init(self, signal: Array, f: Array) -> RegressionState:
        jacobian = jnp.zeros((f.shape[0], signal.shape[0]), f.dtype)
        return RegressionState(empty_window(self.window + 1, signal, f), jacobian, *jnp.zeros((2,), f.dtype))

    def update(self, state: RegressionState, signal: Array, f: Array, variance: Array, at: Array) -> RegressionState:
        window = append_row(state.window, signal, f)
        mean_variance = jnp.mean(variance)
        average = (1 - WINDOW_NOISE_RATE) * state.noise + WINDOW_NOISE_RATE * mean_variance
        noise = jnp.where(state.window.filled == 0, mean_variance, average)
        jacobian, ridge = self._fit(window, state.jacobian, noise)
        return RegressionState(window, jacobian, noise, ridge)

    def estimate(self, state: RegressionState) -> Array:
        return state.jacobian

    def error(self, state: RegressionState) -> Array:
        """The squared error (p, s) from sampling noise, v / (squared moves + ridge); without the bias of the ridge."""
        rows = state.window.signals.shape[0]
        present = (jnp.arange(rows) >= rows - state.window.filled).astype(state.jacobian.dtype)[:, None]
        moves = centre(state.window.signals, present)
        gram = moves.T @ moves
        inverse = inverse_diagonal(gram, jnp.maximum(state.ridge, relative_floor(gram)))
        return jnp.broadcast_to(state.noise * inverse, state.jacobian.shape)

    def _fit(self, window: Window, last: Array, noise: Array) -> tuple[Array, Array]:
        rows, p = window.signals.shape[0], last.shape[0]
        present = (jnp.arange(rows) >= rows - window.filled).astype(last.dtype)[:, None]
        moves, changes = centre(window.signals, present), centre(window.estimates, present)
        gram, cross = moves.T @ moves, moves.T @ changes
        squared_moves = jnp.trace(gram) + jnp.finfo(gram.dtype).tiny
        beyond_noise = jnp.maximum(jnp.sum(changes**2) - (window.filled - 1) * p * noise, 0.0)
        tau2 = jnp.maximum(beyond_noise / (p * squared_moves), jnp.mean(last**2)) + LEAST_TAU2
        # the floor, too, must pull to the last estimate, not to zero
        ridge = HOLD_SHARE * noise / tau2 + relative_floor(gram)
        return solve_ridge(gram, cross + ridge * last.T, ridge).T, ridge


def centre(rows: Array, present: Array) -> Array:
    """Rows minus their mean; rows that hold no data become zero."""
    return present * (rows - jnp.sum(present * rows, 0) / jnp.maximum(jnp.sum(present), 1.0))


def relative_floor(gram: Array) -> Array:
    """The least ridge with which ``gram`` can be solved in its precision.

    It is relative to the trace: an absolute one is lost in single precision once the window has shrunk.
    """
    return LEAST_RIDGE * jnp.trace(gram) + jnp.finfo(gram.dtype).tiny * LEAST_RIDGE_TINY


def inverse_diagonal(gram: Array, ridge: Array) -> Array:
    """The diagonal of (gram + ridge I)^-1."""
    return jnp.diagonal(solve_ridge(gram, jnp.eye(gram.shape[0], dtype=gram.dtype), ridge))


def solve_ridge(gram: Array, right: Array, ridge: Array) -> Array:
    """(gram + ridge I)^-1 right for a positive semi-definite gram; finite where ridge is at least its floor."""
    if gram.shape[0] == 1:
        return right / (gram + ridge)
    return cho_solve(cho_factor(gram + ridge * jnp.eye(gram.shape[0], dtype=gram.dtype)), right)


ESTIMATORS: dict[str, Callable[..., Any]] = {
    "kalman": Kalman,
    "tracking": Tracking,
    "least_squares": LeastSquares,
    "paper": Differences,
}
"""Estimators by name. Add your own, or pass an object."""

WINDOWED = (LeastSquares, Differences)
"""Estimators that use the method's ``window``."""


def get(spec: Any, window: int | None = None) -> JacobianEstimator | None:
    """An estimator by name, with ``window`` where it has one; an object of one's own as it is; None for "auto".

    >>> get("least_squares", 4), get("paper")
    (LeastSquares(window=4), Differences(window=20))
    """
    if isinstance(spec, str) and spec == "auto":
        _no_window(spec, window)
        return None
    if not isinstance(spec, str):
        if not isinstance(spec, JacobianEstimator):
            raise InputError(
                f"jacobian must be a name ({', '.join(['auto', *ESTIMATORS, 'exact'])}) or a "
                f"profl.parts.JacobianEstimator, got {spec!r}"
            )
        return spec
    make = ESTIMATORS[one_of("jacobian", spec, ["auto", *ESTIMATORS, "exact"])]
    if make in WINDOWED:
        return make() if window is None else make(window)
    _no_window(spec, window)
    return make()


def _no_window(spec: str, window: int | None) -> None:
    """Warn of a ``window`` that does nothing."""
    if window is not None:
        warnings.warn(
            f"window does nothing with jacobian={spec!r}, which needs none: leave it out",
            DeprecationWarning,
            stacklevel=6,  # above ``explain_call``
        )
