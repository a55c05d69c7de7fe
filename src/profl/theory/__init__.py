"""Theory in numbers: the paper's convergence bound, the exact error of L2 where shares and means both move, and the
covariance of retraining at the stable point."""

from profl.theory.bound import Constants, bound, estimate, omega_D, omega_F, omega_Q
from profl.theory.second_term import (
    JacobianError,
    SecondTermError,
    f_covariance,
    least_squares_error,
    second_term_error,
)
from profl.theory.stable_covariance import StableCovariance, stable_covariance

__all__ = [
    "Constants",
    "JacobianError",
    "SecondTermError",
    "StableCovariance",
    "bound",
    "estimate",
    "f_covariance",
    "least_squares_error",
    "omega_D",
    "omega_F",
    "omega_Q",
    "second_term_error",
    "stable_covariance",
]
