"""Model spaces: projections onto the models that may be deployed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from profl.typing import Theta


@dataclass(frozen=True)
class Box:
    """The model space [lower, upper] in every coordinate; calling it projects.

    >>> Box(0.0, 5.0)(jnp.array([-1.0, 2.0, 9.0]))
    Array([0., 2., 5.], dtype=float32)
    """

    lower: float
    upper: float

    def __call__(self, theta: Theta) -> Theta:
        return jax.tree.map(lambda leaf: jnp.clip(leaf, self.lower, self.upper), theta)


def everywhere(theta: Theta) -> Theta:
    """The model itself: a model space without bounds."""
    return theta


def bounds(project: Callable[[Theta], Theta]) -> tuple[float, float] | None:
    """(lower, upper) of a bounded ``Box``; None for other model spaces."""
    finite = isinstance(project, Box) and bool(np.isfinite([project.lower, project.upper]).all())
    return (project.lower, project.upper) if isinstance(project, Box) and finite else None
