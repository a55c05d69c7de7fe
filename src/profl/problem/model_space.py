"""Model spaces: projections onto the models that may be deployed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks
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


LEAST_VALUES = 100
"""So many values at least must a number of a model be able to take in its space: of fewer, a step of one per cent of
the space is lost."""


def check_resolution(project: Callable[[Theta], Theta], models: Theta) -> None:
    """Refuse a box around ``models`` in which their floating-point numbers lie too far apart to move.

    >>> check_resolution(Box(9_999_997.0, 10_000_003.0), np.float32([1e7]))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    profl.checks.InputError: the model space from 1e+07 to 1e+07 is 6 wide; float32 has a number only every 1 there...
    """
    ends = bounds(project)
    if ends is None:
        return
    width, far = ends[1] - ends[0], max(map(abs, ends))
    for leaf in jax.tree.leaves(models):
        dtype = jnp.result_type(leaf)
        spacing = float(np.spacing(dtype.type(far)))
        if 0 < width < LEAST_VALUES * spacing:
            raise checks.InputError(
                f"the model space from {ends[0]:.6g} to {ends[1]:.6g} is {width:.4g} wide; {dtype} has a number only "
                f"every {spacing:.4g} there, and a model could not move. Count the parameters from elsewhere "
                f"(theta - {far:.6g}), give them in other units, or use 64 bit: "
                "jax.config.update('jax_enable_x64', True)"
            )


def everywhere(theta: Theta) -> Theta:
    """The model itself: a model space without bounds."""
    return theta


def bounds(project: Callable[[Theta], Theta]) -> tuple[float, float] | None:
    """(lower, upper) of a bounded ``Box``; None for other model spaces."""
    finite = isinstance(project, Box) and bool(np.isfinite([project.lower, project.upper]).all())
    return (project.lower, project.upper) if isinstance(project, Box) and finite else None
