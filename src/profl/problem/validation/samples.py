"""Samples: does a batch suit its family, and does the family know its labels?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks
from profl.problem.families import ClassMeans, Family, GaussianMean, GroupShares, LinearGaussian, LocationScale
from profl.problem.mixtures import GroupMixture
from profl.typing import Batch

FAMILIES: tuple[type[Family], ...] = (
    GaussianMean,
    LocationScale,
    ClassMeans,
    LinearGaussian,
    GroupShares,
    GroupMixture,
)
MESSAGE_LABELS = 6  # labels in a message


def check_batch(family: Family, batch: Batch) -> None:
    """Refuse a batch, or its shapes, that the family cannot read.

    A family that defines ``estimate`` without ``fits`` may read anything.

    >>> check_batch(GaussianMean(), np.zeros(4))
    Traceback (most recent call last):
        ...
    profl.checks.InputError: GaussianMean takes an array of shape (n, p), one row per sample; the batches are an array \
of shape (n,), float64. One number per sample has shape (n, 1): batch[:, None]
    """
    owner = next(cls for cls in type(family).__mro__ if "estimate" in vars(cls))
    if "fits" in vars(owner) and not family.fits(batch):
        name, hint = type(family).__name__, _hint(family, batch)
        raise checks.InputError(f"{name} takes {family.takes}; the batches are {describe_batch(batch)}{hint}")


def check_labels(family: Family, labels: Any) -> None:
    """Refuse classes or groups other than 0, 1, ...; ``labels`` are ``family.labels(batch)``, which may be None.

    >>> check_labels(ClassMeans(2), np.array([-1, 1]))
    Traceback (most recent call last):
        ...
    profl.checks.InputError: the labels of ClassMeans(classes=2) must be 0 or 1, got -1, 1: use (y + 1) // 2
    """
    if labels is None or np.size(labels) == 0:
        return
    labels, count = np.asarray(labels), family.group_count
    if np.isin(labels, np.arange(count)).all():
        return
    values, name = np.unique(labels), type(family).__name__
    size = fields(family)[0].name if is_dataclass(family) and fields(family) else "group_count"
    if set(values.tolist()) <= {-1, 1}:
        hint = ": use (y + 1) // 2"
    elif values.min() == 1 and values.max() == count:
        hint = ": count from 0, y - 1"
    elif values.min() >= 0 and values.dtype.kind in "iu":
        hint = f": is it {name}({size}={values.max() + 1})?"
    else:
        hint = ": number them from 0"
    raise checks.InputError(
        f"the labels of {name}({size}={count}) must be {'0 or 1' if count == 2 else f'0 to {count - 1}'}, got "
        f"{', '.join(map(str, values[:MESSAGE_LABELS]))}{', ...' if values.size > MESSAGE_LABELS else ''}{hint}"
    )


def describe_batch(batch: Batch) -> str:
    """A batch in words; its rows are n.

    >>> describe_batch({"x": np.zeros((4, 2)), "y": np.zeros(4, int)})
    "a dict with 'x' (n, 2) float64, 'y' (n,) int64"
    """
    if isinstance(batch, Mapping):
        return "a dict with " + ", ".join(f"{name!r} {_leaf(value)}" for name, value in batch.items())
    if isinstance(batch, (tuple, list)):
        return f"a {type(batch).__name__} of " + ", ".join(map(_leaf, batch))
    return f"an array of shape {_leaf(batch, ', ')}" if hasattr(batch, "shape") else f"a {type(batch).__name__}"


def _leaf(value: Any, separator: str = " ") -> str:
    if not hasattr(value, "shape"):
        return f"({describe_batch(value)})"
    rows = ["n", *map(str, value.shape[1:])] if value.shape else []
    return f"({', '.join(rows)}{',' if len(rows) == 1 else ''}){separator}{value.dtype}"


def _hint(family: Family, batch: Batch) -> str:
    if isinstance(batch, (tuple, list)):
        return '. Give the arrays names: a dict such as {"x": x, "y": y}'
    if isinstance(batch, Mapping) and family.fits(jax.tree.map(_as_integers, dict(batch))):
        return '. Labels must be whole numbers: y.astype("int32")'
    if getattr(batch, "ndim", 0) == 1:
        return ". One number per sample has shape (n, 1): batch[:, None]"
    others = [cls for cls in FAMILIES if cls().fits(batch)]
    return f". Such batches suit {' or '.join(f'profl.{cls.__name__}()' for cls in others)}" if others else ""


def _as_integers(leaf: Any) -> Any:
    """The shape of a leaf, with integers in place of a vector's numbers."""
    return jax.ShapeDtypeStruct(leaf.shape, jnp.int32 if len(leaf.shape) == 1 else leaf.dtype)
