"""Sources of junk: what Q_i is (paper, Section II-B).

``source(key, batch, theta, distance) -> junk`` turns a clean batch into as many junk samples of the same structure.
Most of them replace every floating leaf (n, ...) of the batch by

    centre + sd * offset,    u = ones / sqrt(d),

with the mean and the standard deviation of every coordinate of the clean batch (one sample alone has none, so its junk
lies on it), and leave integer leaves (labels, groups) as they are. So Q_i moves along with the data, where the paper's
is fixed: a distance of 10 means ten standard deviations in every case and at every theta, and never turns into ordinary
data on the way.

``SOURCES`` is open: whoever adds a name to it can pass that name to ``contaminate``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from profl import checks, random, trees
from profl.typing import Array, Batch, Key, Theta

Source = Callable[[Key, Batch, Theta, Array], Batch]
"""``source(key, batch, theta, distance)``: junk of the same structure and shapes as the clean ``batch``."""


@dataclass(frozen=True)
class AroundData:
    """Base class: centre + sd * ``offset(key, leaf, theta, distance)`` in place of every floating leaf, (..., n)."""

    def __call__(self, key: Key, batch: Batch, theta: Theta, distance: Array) -> Batch:
        def draw(k: Key, leaf: Array) -> Array:
            return leaf.mean(-1, keepdims=True) + leaf.std(-1, keepdims=True) * self.offset(k, leaf, theta, distance)

        return _each_float(key, batch, draw)

    def offset(self, key: Key, leaf: Array, theta: Theta, distance: Array) -> Array:
        raise NotImplementedError


class Blob(AroundData):
    """A cloud beside the data: offset = distance u + N(0, I)."""

    def offset(self, key: Key, leaf: Array, theta: Theta, distance: Array) -> Array:
        return distance * _u(leaf) + _normal(key, leaf)


class PointMass(AroundData):
    """One value, repeated: offset = distance u.

    >>> PointMass()(random.seed_key(0), jnp.array([1.0, 3.0]), None, 5.0)  # the mean is 2, the standard deviation 1
    Array([7., 7.], dtype=float32)
    """

    def offset(self, key: Key, leaf: Array, theta: Theta, distance: Array) -> Array:
        return distance * _u(leaf)


class Uniform(AroundData):
    """A box around the data: offset = distance U(-1, 1) in every coordinate."""

    def offset(self, key: Key, leaf: Array, theta: Theta, distance: Array) -> Array:
        return distance * jax.random.uniform(key, leaf.shape, leaf.dtype, minval=-1.0, maxval=1.0)


class HeavyTail(AroundData):
    """Values without a mean: offset = distance Cauchy in every coordinate."""

    def offset(self, key: Key, leaf: Array, theta: Theta, distance: Array) -> Array:
        return distance * jax.random.cauchy(key, leaf.shape, leaf.dtype)


class TwoBlobs(AroundData):
    """A cloud on either side, which leaves the mean in place: offset = +-distance u + N(0, I), one sign per sample."""

    def __call__(self, key: Key, batch: Batch, theta: Theta, distance: Array) -> Batch:
        side, noise = jax.random.split(key)
        sign = jnp.where(jax.random.bernoulli(side, 0.5, (trees.rows(batch),)), 1, -1)
        return Blob()(noise, batch, theta, sign * distance)


@dataclass(frozen=True)
class LabelFlip:
    """Wrong labels: y -> 1 - y, features as they are; the distance plays no part."""

    def __call__(self, key: Key, batch: Batch, theta: Theta, distance: Array) -> Batch:
        y = batch.get("y") if isinstance(batch, Mapping) else None
        if y is None or not jnp.issubdtype(y.dtype, jnp.integer):
            raise checks.InputError(
                f'source label_flip needs samples with an integer leaf "y" of 0 and 1, got {dtypes(batch)}; '
                'try source="blob"'
            )
        return {**batch, "y": 1 - y}


@dataclass(frozen=True)
class Scaled:
    """Clean data in the wrong unit: distance times the sample."""

    def __call__(self, key: Key, batch: Batch, theta: Theta, distance: Array) -> Batch:
        return _each_float(key, batch, lambda k, leaf: distance * leaf)


class Adaptive(AroundData):
    """A cloud that follows the deployed model, which Huber's fixed Q_i does not: offset = distance v + N(0, I).

    v = theta / |theta| where a sample has as many coordinates as the model, else sign(sum of theta) u; u at theta = 0.
    """

    def offset(self, key: Key, leaf: Array, theta: Theta, distance: Array) -> Array:
        model = trees.ravel(theta)
        length = jnp.linalg.norm(model)
        if math.prod(leaf.shape[:-1]) == model.size:
            towards = jnp.where(length > 0, model / jnp.where(length > 0, length, 1), _u(leaf))
            v = towards.reshape(*leaf.shape[:-1], 1)
        else:
            v = jnp.where(jnp.sum(model) < 0, -1, 1) * _u(leaf)
        return distance * v + _normal(key, leaf)


SOURCES: dict[str, Source] = {
    "blob": Blob(),
    "point": PointMass(),
    "uniform": Uniform(),
    "heavy_tail": HeavyTail(),
    "two_blobs": TwoBlobs(),
    "label_flip": LabelFlip(),
    "scaled": Scaled(),
    "adaptive": Adaptive(),
}


def get(source: Any) -> Source:
    """A source by name, or a function of one's own as it is."""
    if isinstance(source, type):
        raise checks.InputError(f"source must be an object, got the class {source.__name__}; try {source.__name__}()")
    if not callable(source):
        return SOURCES[checks.one_of("source", source, SOURCES)]
    try:
        hash(source)
    except TypeError:
        raise checks.InputError(f"source must be hashable, got {source!r}; try a frozen dataclass") from None
    return source


def name_of(source: Source) -> str:
    """The source's name in ``SOURCES``, or what a person called it."""
    known = [name for name, other in SOURCES.items() if other == source]
    return known[0] if known else getattr(source, "__name__", type(source).__name__)


# -- what sources are made of ------------------------------------------------------------------------------------------
#
# They see a leaf with its samples last, (..., n), as ``random.normal`` lays them out in memory: written with the
# samples first, the same arithmetic costs a client step two to three times as much.


def samples_last(leaf: Array) -> Array:
    return jnp.moveaxis(leaf, 0, -1)


def samples_first(leaf: Array) -> Array:
    return jnp.moveaxis(leaf, -1, 0)


def _u(leaf: Array) -> float:
    """Every coordinate of the unit vector ones / sqrt(d)."""
    return 1 / math.sqrt(math.prod(leaf.shape[:-1]))


def _normal(key: Key, leaf: Array) -> Array:
    return samples_last(random.normal(key, leaf.shape[-1], *leaf.shape[:-1]))


def _each_float(key: Key, batch: Batch, draw: Callable[[Key, Array], Array]) -> Batch:
    """draw(key, leaf) in place of every floating leaf, each with a key of its own; the other leaves as they are."""
    leaves, structure = jax.tree.flatten(batch)
    if not any(map(is_float, leaves)):
        raise checks.InputError(
            f"this source replaces floating leaves, got samples with {dtypes(batch)}; pass a function "
            "(key, batch, theta, distance) -> batch as source"
        )

    def new(k: Key, leaf: Array) -> Array:
        last = samples_last(leaf)
        return samples_first(jnp.broadcast_to(draw(k, last), last.shape).astype(leaf.dtype))

    keys = jax.random.split(key, len(leaves))
    junk = [new(k, leaf) if is_float(leaf) else leaf for k, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, junk)


def is_float(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jnp.floating))


def dtypes(batch: Batch) -> str:
    return str(jax.tree.map(lambda leaf: str(leaf.dtype), batch))
