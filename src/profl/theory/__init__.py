"""The paper's theory in numbers: its convergence bound, and the exact error of L2 where shares and means both move."""

from profl.theory.bound import Constants, bound, estimate, omega_D, omega_F, omega_Q
from profl.theory.second_term import (
    JacobianError,
    SecondTermError,
    f_covariance,
    least_squares_error,
    second_term_error,
)

__all__ = [
    "Constants",
    "JacobianError",
    "SecondTermError",
    "bound",
    "estimate",
    "f_covariance",
    "least_squares_error",
    "omega_D",
    "omega_F",
    "omega_Q",
    "second_term_error",
]
