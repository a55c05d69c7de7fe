"""Push-forwards: where one sample that came in under one model would lie under another (Cyffers et al. 2024).

phi(z, deployed, theta), with phi(z, d, d) = z. Where it is known, the performative gradient is a total derivative,

    grad L(theta) = d/dt E[l(t, phi(z, theta, t))] at t = theta,        z ~ D(theta)

and neither a density nor the Jacobian of a family is needed. For z = z0 + A theta it is z + A (theta - deployed). Where
some numbers in it are not known, clients find them from how f moves (``profl.parts.push_parameters``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks, trees
from profl.typing import Array, Batch, Theta

SAME = 1e-3
"""Of the largest number in a sample: how far phi(z, d, d) may be from z. Far above the rounding of single precision,
1e-7, and far below what a push does that forgot to subtract what was deployed."""


@dataclass(frozen=True)
class Push:
    """A push-forward, ``function(z, deployed, theta)`` of one sample, for ``Problem(push=...)``.

    Args:
      function: where z would lie under ``theta``; it leaves structure and shapes as they are. With ``parameters`` it is
        given a fourth argument, a vector of so many numbers.
      parameters: where they start, at every client; from there each client estimates its own. None: nothing is unknown.
      spread: standard deviations of what the parameters may be around that: one number, or one per parameter.

    >>> push = Push(lambda z, deployed, theta, slope: z + slope * (theta - deployed), parameters=[0.0, 0.0])
    >>> push.at(jnp.array([-1.0, 2.0]))(jnp.ones(2), jnp.zeros(2), jnp.ones(2))
    Array([0., 3.], dtype=float32)
    """

    function: Callable[..., Batch]
    parameters: Any = None
    spread: Any = 1.0

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise checks.InputError(f"push must be a function (z, deployed, theta) -> z, got {self.function!r}")
        if self.parameters is not None:
            start = _numbers("parameters", self.parameters)
            object.__setattr__(self, "parameters", start)
            each = _numbers("spread", self.spread if np.ndim(self.spread) else [self.spread] * len(start))
            if len(each) != len(start) or min(each) <= 0:
                raise checks.InputError(
                    f"spread must be a number above 0, or one for each of {len(start)} parameters, got {self.spread!r}"
                )
            object.__setattr__(self, "spread", each)
        names = ("z", "deployed", "theta", *(["parameters"] if self.unknown else []))
        if not _takes(self.function, len(names)):
            raise checks.InputError(
                f"push must be a function of {len(names)} arguments ({', '.join(names)}), got "
                f"{inspect.signature(self.function)}; "
                "for numbers to be estimated, profl.worlds.Push(function, parameters)"
            )

    @property
    def unknown(self) -> bool:
        """Whether it has parameters to estimate."""
        return self.parameters is not None

    def at(self, parameters: Array) -> Push:
        """The push with its parameters known."""
        return replace(self, function=lambda *three: self.function(*three, parameters), parameters=None)

    def __call__(self, z: Batch, deployed: Theta, theta: Theta) -> Batch:
        return self.function(z, deployed, theta)


def check(push: Push, batch: Batch, thetas: list[Theta]) -> None:
    """Refuse a push that changes the shapes of a sample, or moves it where ``theta`` equals ``deployed``."""
    known = push.at(jnp.asarray(push.parameters)) if push.unknown else push
    z = trees.take(batch, 0)
    moved = jax.eval_shape(known, z, thetas[0], thetas[0])
    checks.same_structure("what push returns", moved, z)
    kinds = [[leaf.dtype.name for leaf in jax.tree.leaves(tree)] for tree in (moved, jax.eval_shape(lambda: z))]
    if kinds[0] != kinds[1]:
        raise checks.InputError(f"what push returns must have the dtypes {kinds[1]}, got {kinds[0]}")
    for theta in thetas:
        after = jax.vmap(known, (0, None, None))(batch, theta, theta)
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


def _numbers(name: str, values: Any) -> tuple[float, ...]:
    if np.ndim(values) != 1 or np.size(values) == 0:
        raise checks.InputError(f"{name} of a push must be a flat list of numbers, got {values!r}")
    return tuple(checks.real(f"{name}[{i}]", value) for i, value in enumerate(np.asarray(values).tolist()))
