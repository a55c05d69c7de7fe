"""Model spaces: projections onto the models that may be deployed."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks
from profl.typing import Theta

Bound: TypeAlias = float | tuple[float, ...]
"""One number for all coordinates of a model, or one for each."""


@checks.explain_call
@dataclass(frozen=True)
class Box:
    """The model space [lower, upper] in every coordinate; calling it projects.

    A bound is one number, or a list or an array with one number per coordinate, in the order of the flattened model.
    Boxes with equal bounds are equal and share compiled code.

    >>> Box(0.0, 5.0)(jnp.array([-1.0, 2.0, 9.0]))
    Array([0., 2., 5.], dtype=float32)
    >>> Box(0.0, [5.0, 1.0, 8.0])(jnp.array([-1.0, 2.0, 9.0]))
    Array([0., 1., 8.], dtype=float32)
    >>> Box(5.0, 0.0)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    profl.checks.InputError: lower must be at most upper in every coordinate, and below it in one, got lower 5.0...
    """

    lower: Any
    upper: Any

    def __post_init__(self) -> None:
        for name in ("lower", "upper"):
            object.__setattr__(self, name, _as_bound(name, getattr(self, name)))
        sizes = {len(bound) for bound in (self.lower, self.upper) if isinstance(bound, tuple)}
        if len(sizes) > 1:
            raise checks.InputError(
                f"lower and upper must have as many numbers, got {len(self.lower)} and {len(self.upper)}"
            )
        lower, upper = np.broadcast_arrays(self.lower, self.upper)
        if not (np.all((lower <= upper) & (lower < np.inf) & (upper > -np.inf)) and np.any(lower < upper)):
            raise checks.InputError(
                "lower must be at most upper in every coordinate, and below it in one, got "
                f"lower {checks.shown(self.lower)}, upper {checks.shown(self.upper)}"
            )

    def __call__(self, theta: Theta) -> Theta:
        if not (isinstance(self.lower, tuple) or isinstance(self.upper, tuple)):
            return jax.tree.map(lambda leaf: jnp.clip(leaf, self.lower, self.upper), theta)
        leaves, structure = jax.tree.flatten(theta)
        bounds = zip(_split(self.lower, leaves), _split(self.upper, leaves), strict=True)
        clipped = [jnp.clip(leaf, *pair) for leaf, pair in zip(leaves, bounds, strict=True)]
        return jax.tree.unflatten(structure, clipped)


def _as_bound(name: str, value: Any) -> Bound:
    """A bound as it is compared and hashed."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        array = checks.numbers_of(name, value, "a number, or one per coordinate of the model")
        if np.asarray(value).dtype.kind not in "fiu" or array.ndim > 1 or not array.size:
            raise checks.InputError(
                f"{name} must be a number, or one per coordinate of the model, got {checks.shown(value)}"
            )
        value = tuple(array.tolist()) if array.ndim else array.item()
    if np.any(np.isnan(value)):
        raise checks.InputError(f"{name} must be numbers, got NaN in {checks.shown(value)}; try -np.inf for no bound")
    return value


def _split(bound: Bound, leaves: list[Any]) -> list[Any]:
    """A bound for every leaf of a model, in its shape and dtype."""
    if not isinstance(bound, tuple):
        return [bound] * len(leaves)
    sizes = [np.size(leaf) for leaf in leaves]
    if sum(sizes) != len(bound):
        raise checks.InputError(
            f"a Box must have one bound per coordinate of the model, {sum(sizes)}, got {len(bound)}"
        )
    parts = np.split(np.array(bound), np.cumsum(sizes)[:-1])
    return [
        jnp.asarray(part.reshape(np.shape(leaf)), jnp.result_type(leaf))
        for part, leaf in zip(parts, leaves, strict=True)
    ]


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
    lower, upper = np.broadcast_arrays(*ends)
    for dtype in {jnp.result_type(leaf) for leaf in jax.tree.leaves(models)}:
        spacings = np.spacing(np.maximum(np.abs(lower), np.abs(upper)).astype(dtype)).astype(float)
        narrow = (lower < upper) & (upper - lower < LEAST_VALUES * spacings)
        if narrow.any():
            place = int(np.argmax(narrow))
            low, high, spacing = (each.ravel()[place].item() for each in (lower, upper, spacings))
            width, far = high - low, max(abs(low), abs(high))
            raise checks.InputError(
                f"the model space from {low:.6g} to {high:.6g} is {width:.4g} wide; {dtype} has a number only "
                f"every {spacing:.4g} there, and a model could not move. Count the parameters from elsewhere "
                f"(theta - {far:.6g}), give them in other units, or use 64 bit: "
                "jax.config.update('jax_enable_x64', True)"
            )


def everywhere(theta: Theta) -> Theta:
    """The model itself: a model space without bounds."""
    return theta


def bounds(project: Callable[[Theta], Theta]) -> tuple[Bound, Bound] | None:
    """(lower, upper) of a bounded ``Box``, with or without linear limits; None for other model spaces."""
    project = getattr(project, "box", project)
    if not isinstance(project, Box) or not (np.all(np.isfinite(project.lower)) and np.all(np.isfinite(project.upper))):
        return None
    return project.lower, project.upper
