"""How strongly f_hat changes between the two models of pairs, in standard deviations of a normal variable.

In coordinates in which the noise of f_hat is white, the change between two deployments has variance 2 in every entry
where nothing reacts, so that X = sum over pairs and entries of change^2 / 2 is chi-squared. Wilson and Hilferty give
the normal variable with the same tail.
"""

from __future__ import annotations

import math

import numpy as np

from profl.run import probes


def deviations(f: np.ndarray, noise: np.ndarray) -> float:
    """Standard deviations of the changes f[1] - f[0], f[3] - f[2], ...; ``noise`` (draws, p) is that of every f."""
    white, _ = probes.whiten(f, noise)
    if white.shape[1] == 0:  # nothing varies: any change is one
        return math.inf if np.any(f[::2] != f[1::2]) else 0.0
    x, entries = float(np.sum((white[::2] - white[1::2]) ** 2) / 2), len(f) // 2 * white.shape[1]
    return ((x / entries) ** (1 / 3) - 1 + 2 / (9 * entries)) / math.sqrt(2 / (9 * entries))
