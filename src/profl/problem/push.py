"""Push-forwards: where one sample that came in under one model would lie under another (Cyffers et al. 2024).

phi(z, deployed, theta), with phi(z, d, d) = z. Where it is known, the performative gradient is a total derivative,

    grad L(theta) = d/dt E[l(t, phi(z, theta, t))] at t = theta,        z ~ D(theta)

and neither a density nor the Jacobian of a family is needed. For z = z0 + A theta it is z + A (theta - deployed).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from profl import checks, trees
from profl.typing import Batch, Theta

SAME = 1e-3
"""Of the largest number in a sample: how far phi(z, d, d) may be from z. Far above the rounding of single precision,
1e-7, and far below what a push does that forgot to subtract what was deployed."""


Push = Callable[[Batch, Theta, Theta], Batch]
"""``push(z, deployed, theta)``: where one sample would lie under ``theta``; structure and shapes stay as they are."""


def check_arguments(push: Any) -> None:
    """Refuse what is no function of (z, deployed, theta)."""
    if not callable(push):
        raise checks.InputError(f"push must be a function (z, deployed, theta) -> z, got {push!r}")
    if not _takes(push, 3):
        raise checks.InputError(
            f"push must be a function of 3 arguments (z, deployed, theta), got {inspect.signature(push)}"
        )


@partial(jax.jit, static_argnums=0)
def _move_samples(push: Push, batch: Batch, theta: Theta) -> Batch:
    """What ``push`` makes of a batch where the model stays."""
    return jax.vmap(push, (0, None, None))(batch, theta, theta)


def check(push: Push, batch: Batch, thetas: list[Theta]) -> None:
    """Refuse a push that changes the shapes of a sample, or moves it where ``theta`` equals ``deployed``."""
    z = trees.take(batch, 0)
    moved = jax.eval_shape(push, z, thetas[0], thetas[0])
    checks.same_structure("what push returns", moved, z)
    kinds = [[leaf.dtype.name for leaf in jax.tree.leaves(tree)] for tree in (moved, jax.eval_shape(lambda: z))]
    if kinds[0] != kinds[1]:
        raise checks.InputError(f"what push returns must have the dtypes {kinds[1]}, got {kinds[0]}")
    for theta in thetas:
        after = _move_samples(push, batch, theta)
        for old, new in zip(jax.tree.leaves(batch), jax.tree.leaves(after), strict=True):
            size = np.max(np.abs(old), initial=0.0)
            off = np.max(np.abs(np.asarray(new, float) - np.asarray(old, float)), initial=0.0)
            if off > SAME * (size if size > 0 else 1.0):
                raise checks.InputError(
                    f"push(z, deployed, theta) must be z where theta is what was deployed; it moved z by {off:.3g}: "
                    "push from deployed to theta, as in z + A (theta - deployed)"
                )


def _takes(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # a built-in that does not tell
        return True
    return True
