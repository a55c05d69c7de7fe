"""Limits on what may be deployed: linear ones on the model, and how far it may move in one deployment.

A theta <= b                          ``LinearLimits``, kept by the projection onto the model space (``Polyhedron``)
|theta - last| <= amount (* |last|)   ``MaxChange``, kept where a client deploys; last is what it deployed before

Limits on what comes in are ``profl.problem.outcomes``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from profl import checks, trees
from profl.problem.model_space import Box, everywhere
from profl.problem.outcomes import OutcomeLimit, outcome_limits
from profl.problem.polyhedron import Region, nearest_point, pull_inside, tolerances
from profl.typing import Array, Theta


@checks.explain_call
@dataclass(frozen=True)
class LinearLimits:
    """The limits A theta <= b on a model, one per row of A; theta is the flattened model.

    Args:
      A: one row per limit, one column per number of the model.
      b: one number per limit.

    A price ladder, in which the second price is at least the first, and a mean price of at most 4:

    >>> LinearLimits([[1, -1], [0.5, 0.5]], [0, 4])
    LinearLimits(A=((1.0, -1.0), (0.5, 0.5)), b=(0.0, 4.0))
    """

    A: Any
    b: Any

    def __post_init__(self) -> None:
        A = checks.numbers_of("A", self.A, "a table with one row per limit")
        b = checks.numbers_of("b", self.b, "one number per limit")
        if A.ndim != 2 or not A.size:
            raise checks.InputError(f"A must be a table with one row per limit, got shape {A.shape}; try [[1.0, -1.0]]")
        if b.shape != A.shape[:1]:
            raise checks.InputError(f"b must have one number per row of A, {A.shape[0]}, got shape {b.shape}")
        if not (np.isfinite(A).all() and np.isfinite(b).all()):
            raise checks.InputError("A and b must be finite, got NaN or Inf: leave a limit that does not exist out")
        if not A.any(axis=1).all():
            row = int(np.argmin(A.any(axis=1)))
            raise checks.InputError(f"a limit must limit something, got only zeros in row {row} of A")
        object.__setattr__(self, "A", tuple(map(tuple, A.tolist())))
        object.__setattr__(self, "b", tuple(b.tolist()))


@checks.explain_call
@dataclass(frozen=True)
class MaxChange:
    """How far a model may move from the last one that a client deployed, in each number of it.

    Before a client's first deployment that is the model that the run starts from.

    Args:
      amount: one number, or one per number of the model; 0 holds a number where it is.
      relative: whether the amount is a share of what was deployed last.

    >>> MaxChange(0.10, relative=True)
    MaxChange(amount=0.1, relative=True)
    """

    amount: Any
    relative: bool = False

    def __post_init__(self) -> None:
        amount = checks.numbers_of("amount", self.amount, "a number, or one per number of the model")
        if amount.ndim > 1 or not (np.isfinite(amount).all() and np.all(amount >= 0) and np.any(amount > 0)):
            raise checks.InputError(
                "amount must be a finite number above 0, or one per number of the model, "
                f"got {checks.shown(self.amount)}"
            )
        object.__setattr__(self, "amount", tuple(amount.tolist()) if amount.ndim else amount.item())
        object.__setattr__(self, "relative", checks.flag("relative", self.relative))

    def reach(self, last: Array) -> Array:
        """How far each number may move from ``last`` (d,)."""
        amount = jnp.asarray(self.amount, last.dtype)
        return amount * jnp.abs(last) if self.relative else jnp.broadcast_to(amount, last.shape)

    def nearest(self, project: Callable[[Theta], Theta], theta: Theta, last: Theta) -> Theta:
        """The model that may follow ``last`` and is nearest to ``theta``, in the model space of ``project``.

        In a space that is no box, with or without linear limits, it lies on the way from ``last`` to the projection of
        ``theta``; the space is taken to be convex.

        >>> MaxChange(1.0).nearest(Box(0.0, 5.0), jnp.array([9.0, 2.5]), jnp.array([3.0, 2.0]))
        Array([4. , 2.5], dtype=float32)
        """
        before, unravel = ravel_pytree(last if isinstance(project, Polyhedron) else project(last))
        reach = self.reach(before)
        if isinstance(project, Polyhedron):
            near = project.within(trees.ravel(theta), before - reach, before + reach, before)
            return unravel(project.pulled_inside(near))  # a client may say that it deployed what lies outside
        wanted = trees.ravel(project(theta))
        if isinstance(project, Box) or project is everywhere:
            return unravel(jnp.clip(wanted, before - reach, before + reach))
        move = jnp.abs(wanted - before)
        share = jnp.min(jnp.where(move > reach, reach / jnp.where(move > 0, move, 1.0), 1.0))
        return unravel(before + share * (wanted - before))


Limit = LinearLimits | MaxChange | OutcomeLimit


@dataclass(frozen=True)
class Polyhedron:
    """The model space of a ``Box`` with linear limits; calling it projects, exactly but for rounding."""

    box: Box | None
    limits: LinearLimits
    centre: tuple[float, ...]  # a model that satisfies them

    def __call__(self, theta: Theta) -> Theta:
        flat, unravel = ravel_pytree(theta)
        return unravel(self.within(flat, -np.inf, np.inf, np.asarray(self.centre)))

    def within(self, flat: Array, lower: Any, upper: Any, centre: Any) -> Array:
        """The nearest model (d,) between further bounds, in which ``centre`` satisfies all."""
        region = as_arrays(self.region, flat.dtype)
        region = region._replace(lower=jnp.maximum(region.lower, lower), upper=jnp.minimum(region.upper, upper))
        return pull_inside(region, nearest_point(region, flat)[0], jnp.asarray(centre, flat.dtype))

    def pulled_inside(self, flat: Array) -> Array:
        """A model (d,) of the space, from one that is nearly in it."""
        return pull_inside(as_arrays(self.region, flat.dtype), flat, jnp.asarray(self.centre, flat.dtype))

    @property
    def region(self) -> Region:
        """Rows of length one, and bounds, as NumPy arrays."""
        return region_of(self.box, self.limits)


def space_region(project: Callable[[Theta], Theta], size: int) -> Region:
    """A model space of ``size`` numbers as a region of NumPy arrays; that of a user's own function has no bounds.

    >>> [part.tolist() for part in space_region(Box(0.0, 5.0), 2).bounds]
    [[0.0, 0.0], [5.0, 5.0]]
    """
    if isinstance(project, Polyhedron):
        return project.region
    ends = (project.lower, project.upper) if isinstance(project, Box) else (-np.inf, np.inf)
    lower, upper = (np.broadcast_to(end, size).astype(float) for end in ends)
    return Region(np.zeros((0, size)), np.zeros(0), lower, upper)


def as_arrays(region: Region, dtype: Any) -> Region:
    """The region in a model's precision."""
    return Region(*(jnp.asarray(part, dtype) for part in region))


def region_of(box: Box | None, limits: LinearLimits) -> Region:
    A, b = np.array(limits.A), np.array(limits.b)
    lengths = np.linalg.norm(A, axis=1)
    return space_region(box or everywhere, A.shape[1])._replace(A=A / lengths[:, None], b=b / lengths)


def as_limits(value: Any) -> tuple[Limit, ...]:
    """The limits of a problem as a tuple, from one or several; at most one ``MaxChange``."""
    limits = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if value is None:
        return ()
    for limit in limits:
        if not isinstance(limit, Limit):
            raise checks.InputError(
                "limits must be profl.LinearLimits(A, b), profl.MaxChange(amount), profl.OutcomeLimit(outcome, ...) "
                f"or a list of them, got {checks.shown(limit)}"
            )
    if sum(isinstance(limit, MaxChange) for limit in limits) > 1:
        raise checks.InputError("limits must have one MaxChange at most: state the smaller one of each number")
    return limits


def max_change(limits: tuple[Limit, ...]) -> MaxChange | None:
    """The limit of moves among the limits, if there is one."""
    return next((limit for limit in limits if isinstance(limit, MaxChange)), None)


def check_start(limits: tuple[Limit, ...], models: Theta) -> None:
    """Refuse models (one row each) to start from that could never move."""
    change = max_change(limits)
    if change is None or not change.relative:
        return
    rows = np.concatenate([np.reshape(leaf, (np.shape(leaf)[0], -1)) for leaf in jax.tree.leaves(models)], axis=1)
    if stays := np.flatnonzero(np.any((rows == 0) & (np.array(change.amount) > 0), axis=0)).tolist():
        raise checks.InputError(
            f"number {stays[0]} of the initial model is 0, and a relative MaxChange would hold it there: "
            "start elsewhere, or state an absolute amount"
        )


def limited_space(
    project: Callable[[Theta], Theta], limits: tuple[Limit, ...], like: Theta
) -> Callable[[Theta], Theta]:
    """The model space with the limits in it; refuses limits that do not fit a model like ``like``, and contradictions.

    A space that has linear limits is taken without them, so that limits can be replaced.
    """
    project = (project.box or everywhere) if isinstance(project, Polyhedron) else project
    size = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(like))
    change = max_change(limits)
    if change is not None and isinstance(change.amount, tuple) and len(change.amount) != size:
        raise checks.InputError(
            f"MaxChange must have one amount, or one per number of the model, {size}, got {len(change.amount)}"
        )
    linear = [limit for limit in limits if isinstance(limit, LinearLimits)]
    if (kind := "LinearLimits" if linear else "OutcomeLimits" if outcome_limits(limits) else "") and not (
        isinstance(project, Box) or project is everywhere
    ):
        raise checks.InputError(
            f"{kind} are for a model space that is a profl.Box or has no bounds, got project={checks.shown(project)}"
        )
    if not linear:
        return project
    for limit in linear:
        if len(limit.A[0]) != size:
            raise checks.InputError(
                f"A of LinearLimits must have one column per number of the model, {size}, got {len(limit.A[0])}"
            )
    box = project if isinstance(project, Box) else None
    joined = LinearLimits([row for limit in linear for row in limit.A], [top for limit in linear for top in limit.b])
    return Polyhedron(box, joined, _centre(box, joined))


def _centre(box: Box | None, limits: LinearLimits) -> tuple[float, ...]:
    """A model that satisfies box and limits; refuses those that none satisfies."""
    region = region_of(box, limits)
    width = len(limits.A[0])
    for bound in region.bounds:
        if bound.shape != (width,):  # pragma: no cover (the box refuses it when it is called)
            raise checks.InputError("a Box must have one bound per coordinate of the model")
    bounded = np.isfinite(region.lower) & np.isfinite(region.upper)
    middle = np.where(bounded, np.add(*np.where(bounded, region.bounds, 0.0)) / 2, np.clip(0.0, *region.bounds))
    point, stuck = nearest_point(region, middle, xp=np)
    over = region.A @ point - region.b
    if stuck or np.any(over > tolerances(region, np, point)[: over.size]):
        within = "" if box is None else " inside the Box"
        raise checks.InputError(
            f"no model{within} satisfies the limits A theta <= b: the nearest one misses limit {int(np.argmax(over))} "
            f"by {np.max(over * np.linalg.norm(limits.A, axis=1)):.3g}; loosen one of them"
        )
    return tuple(np.clip(point, *region.bounds).tolist())
