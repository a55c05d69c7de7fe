"""Contamination: a share of what comes in is junk (paper, Section II-B, Huber's model).

    P_i(theta) = (1 - eps_i) D_i(theta) + eps_i Q_i

Each sample is replaced by junk with probability eps_i, independently. Only the data change: the risk, the optimum and
the stable point stay those of D_i, because they are what a robust method is to find in spite of the junk.

A source says what Q_i is: ``source(key, batch, theta, distance) -> junk`` turns a clean batch into as many junk samples
of the same structure. The built-in ones replace every floating leaf (n, ...) of the batch by

    centre + sd * offset,    u = ones / sqrt(d),

with the mean and the standard deviation of every coordinate of the clean batch (one sample alone has none, so its junk
lies on it), and leave integer leaves (labels, groups) as they are. So Q_i moves along with the data, where the paper's
is fixed: a distance of 10 means ten standard deviations in every case and at every theta, and never turns into ordinary
data on the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks, random, trees
from profl.problem.problem import Problem
from profl.problem.reaction import Reaction
from profl.typing import Array, Batch, Client, Key, Theta

Source = Callable[[Key, Batch, Theta, Array], Batch]
"""``source(key, batch, theta, distance)``: junk of the same structure and shapes as the clean ``batch``."""

_JUNK = 0x6A756E6B  # a small number folded into a key gives one of the keys that splitting it gives


@dataclass(frozen=True)
class Blob:
    """A cloud beside the data: offset = distance u + N(0, I)."""

    def __call__(self, key: Key, batch: Batch, theta: Theta, distance: Array) -> Batch:
        return _around(key, batch, lambda k, leaf: distance * _u(leaf) + _normal(k, leaf))


@dataclass(frozen=True)
class PointMass:
    """One value, repeated: offset = distance u.

    >>> PointMass()(random.seed_key(0), jnp.array([1.0, 3.0]), None, 5.0)  # the mean is 2, the standard deviation 1
    Array([7., 7.], dtype=float32)
    """

    def __call__(self, key: Key, batch: Batch, theta: Theta, distance: Array) -> Batch:
        return _around(key, batch, lambda k, leaf: distance * _u(leaf))


@dataclass(frozen=True)
class Uniform:
    """A box around the data: offset = distance U(-1, 1) in every coordinate."""

    def __call__(self, key: Key, batch: Batch, theta: Theta, distance: Array) -> Batch:
        draw = partial(jax.random.uniform, minval=-1.0, maxval=1.0)
        return _around(key, batch, lambda k, leaf: distance * draw(k, leaf.shape, leaf.dtype))


@dataclass(frozen=True)
class HeavyTail:
    """Values without a mean: offset = distance Cauchy in every coordinate."""

    def __call__(self, key: Key, batch: Batch, theta: Theta, distance: Array) -> Batch:
        return _around(key, batch, lambda k, leaf: distance * jax.random.cauchy(k, leaf.shape, leaf.dtype))


@dataclass(frozen=True)
class TwoBlobs:
    """A cloud on either side, which leaves the mean in place: offset = +-distance u + N(0, I), one sign per sample."""

    def __call__(self, key: Key, batch: Batch, theta: Theta, distance: Array) -> Batch:
        side, noise = jax.random.split(key)
        sign = jnp.where(jax.random.bernoulli(side, 0.5, (trees.rows(batch),)), 1, -1)
        return _around(noise, batch, lambda k, leaf: sign * distance * _u(leaf) + _normal(k, leaf))


@dataclass(frozen=True)
class LabelFlip:
    """Wrong labels: y -> 1 - y, features as they are; the distance plays no part."""

    def __call__(self, key: Key, batch: Batch, theta: Theta, distance: Array) -> Batch:
        y = batch.get("y") if isinstance(batch, Mapping) else None
        if y is None or not jnp.issubdtype(y.dtype, jnp.integer):
            raise checks.InputError(
                f'source label_flip needs samples with an integer leaf "y" of 0 and 1, got {_dtypes(batch)}; '
                'try source="blob"'
            )
        return {**batch, "y": 1 - y}


@dataclass(frozen=True)
class Scaled:
    """Clean data in the wrong unit: distance times the sample."""

    def __call__(self, key: Key, batch: Batch, theta: Theta, distance: Array) -> Batch:
        return _each_float(key, batch, lambda k, leaf: distance * leaf)


@dataclass(frozen=True)
class Adaptive:
    """A cloud that follows the deployed model, which Huber's fixed Q_i does not: offset = distance v + N(0, I).

    v = theta / |theta| where a sample has as many coordinates as the model, else sign(sum of theta) u; u at theta = 0.
    """

    def __call__(self, key: Key, batch: Batch, theta: Theta, distance: Array) -> Batch:
        model = trees.ravel(theta)
        length = jnp.linalg.norm(model)

        def offset(k: Key, leaf: Array) -> Array:
            if math.prod(leaf.shape[:-1]) == model.size:
                towards = jnp.where(length > 0, model / jnp.where(length > 0, length, 1), _u(leaf))
                v = towards.reshape(*leaf.shape[:-1], 1)
            else:
                v = jnp.where(jnp.sum(model) < 0, -1, 1) * _u(leaf)
            return distance * v + _normal(k, leaf)

        return _around(key, batch, offset)


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


@dataclass(frozen=True)
class ContaminatedReaction(Reaction):
    """``clean`` with a share of junk; what is known exactly is known of the clean data.

    A client is ``{"clean": the clean reaction's, "fraction": eps, "source": index into sources, "distance": ()}``.
    """

    clean: Reaction
    sources: tuple[Source, ...]

    def sample(self, key: Key, theta: Theta, client: Client, n: int) -> Batch:
        return self.marked(key, theta, client, n)[0]

    def marked(self, key: Key, theta: Theta, client: Client, n: int) -> tuple[Batch, Array]:
        """A batch, and which of its samples are junk: for diagnostics, since no client knows it.

        The samples that are not junk are exactly those that ``clean`` draws from the same key. (Compiled, a few may
        differ in their last bits: what is fused with the junk may be rounded once where ``clean`` alone rounds twice.)
        """
        batch = self.clean.sample(key, theta, client["clean"], n)
        which, draw = jax.random.split(jax.random.fold_in(key, _JUNK + self._layer))
        is_junk = jax.random.bernoulli(which, client["fraction"], (trees.rows(batch),))
        branches = [partial(_junk, source) for source in self.sources]
        if len(branches) == 1:
            junk = branches[0](draw, batch, theta, client["distance"])
        else:
            junk = jax.lax.switch(client["source"], branches, draw, batch, theta, client["distance"])
        return _choose(is_junk, junk, batch), is_junk

    def weights(self, client: Client, n: int, count: Array) -> Array:
        return self.clean.weights(client["clean"], n, count)

    @property
    def parameters(self) -> Callable[..., Array] | None:  # type: ignore[override]
        return _of_clean(self.clean.parameters)

    @property
    def decoupled(self) -> Callable[..., Array] | None:  # type: ignore[override]
        return _of_clean(self.clean.decoupled)

    @property
    def accuracy(self) -> Callable[..., Array] | None:  # type: ignore[override]
        return _of_clean(self.clean.accuracy)

    @property
    def _layer(self) -> int:
        """How many contaminations lie below this one: each draws its junk from a key of its own."""
        return self.clean._layer + 1 if isinstance(self.clean, ContaminatedReaction) else 0


def contaminate(problem: Problem, fraction: Any, source: Any = "blob", *, distance: Any = 10.0) -> Problem:
    """``problem`` with junk among its data; its risk, optimum and stable point stay those of the clean data.

    A problem without exact answers is to be solved first, ``contaminate(problem.solve(), ...)``: solved afterwards, its
    answers would be those of the junk.

    Args:
      fraction: eps_i in [0, 0.5), the expected share of junk: one number, or one per client.
      source: what the junk is: a name in ``SOURCES``, a function ``(key, batch, theta, distance) -> batch``, or one of
        these per client.
      distance: how far away it lies, in standard deviations of the clean data: one number, or one per client.

    >>> import profl
    >>> clean = profl.cases.pricing(clients=4)
    >>> case = contaminate(clean, 0.2, "blob", distance=10)
    >>> case.name, bool(np.isclose(case.risk(np.ones(5)), clean.risk(np.ones(5))))
    ('pricing with 20% blob', True)
    >>> batch, is_junk = case.reaction.marked(random.seed_key(0), np.ones(5), trees.take(case.clients, 0), 1000)
    >>> batch.shape, round(float(is_junk.mean()), 1)
    ((1000, 5), 0.2)
    """
    if not isinstance(problem, Problem):
        raise checks.InputError(f"problem must be a profl.Problem such as profl.cases.pricing(), got {problem!r}")
    fractions = _per_client("fraction", fraction, problem.count, _fraction)
    distances = _per_client("distance", distance, problem.count, checks.positive)
    sources, index = _sources(source, problem.count)
    for each in sources:
        _check_source(each, problem)
    return replace(
        problem,
        name=f"{problem.name} with {_percent(fractions)} {'/'.join(map(_name, sources))}",
        clients={"clean": problem.clients, "fraction": fractions, "source": index, "distance": distances},
        reaction=ContaminatedReaction(problem.reaction, sources),
    )


# -- what sources are made of ------------------------------------------------------------------------------------------
#
# They see a leaf with its samples last, (..., n), as ``random.normal`` lays them out in memory: written with the
# samples first, the same arithmetic costs a client step two to three times as much.


def _samples_last(leaf: Array) -> Array:
    return jnp.moveaxis(leaf, 0, -1)


def _samples_first(leaf: Array) -> Array:
    return jnp.moveaxis(leaf, -1, 0)


def _u(leaf: Array) -> float:
    """Every coordinate of the unit vector ones / sqrt(d)."""
    return 1 / math.sqrt(math.prod(leaf.shape[:-1]))


def _normal(key: Key, leaf: Array) -> Array:
    return _samples_last(random.normal(key, leaf.shape[-1], *leaf.shape[:-1]))


def _around(key: Key, batch: Batch, offset: Callable[[Key, Array], Array]) -> Batch:
    """centre + sd * offset(key, leaf) in every floating leaf."""

    def draw(k: Key, leaf: Array) -> Array:
        return leaf.mean(-1, keepdims=True) + leaf.std(-1, keepdims=True) * offset(k, leaf)

    return _each_float(key, batch, draw)


def _each_float(key: Key, batch: Batch, draw: Callable[[Key, Array], Array]) -> Batch:
    """draw(key, leaf) in place of every floating leaf, each with a key of its own; the other leaves as they are."""
    leaves, structure = jax.tree.flatten(batch)
    if not any(map(_is_float, leaves)):
        raise checks.InputError(
            f"this source replaces floating leaves, got samples with {_dtypes(batch)}; pass a function "
            "(key, batch, theta, distance) -> batch as source"
        )

    def new(k: Key, leaf: Array) -> Array:
        last = _samples_last(leaf)
        return _samples_first(jnp.broadcast_to(draw(k, last), last.shape).astype(leaf.dtype))

    keys = jax.random.split(key, len(leaves))
    junk = [new(k, leaf) if _is_float(leaf) else leaf for k, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, junk)


def _choose(is_junk: Array, junk: Batch, batch: Batch) -> Batch:
    """Rows of ``junk`` where marked, else of ``batch``."""

    def choose(new: Array, old: Array) -> Array:
        return _samples_first(jnp.where(is_junk, _samples_last(new), _samples_last(old)))

    return jax.tree.map(choose, junk, batch)


def _junk(source: Source, key: Key, batch: Batch, theta: Theta, distance: Array) -> Batch:
    """What the source gives, in the precision of the batch."""
    return jax.tree.map(lambda new, old: new.astype(old.dtype), source(key, batch, theta, distance), batch)


def _of_clean(function: Callable[..., Array] | None) -> Callable[..., Array] | None:
    """A function whose last argument is a clean client, for a contaminated one; None stays None."""
    if function is None:
        return None
    return lambda *arguments: function(*arguments[:-1], arguments[-1]["clean"])


# -- checks of what is passed in ---------------------------------------------------------------------------------------


def _fraction(name: str, value: Any) -> float:
    # The paper allows eps up to 1; from one half on nothing says which part is the data.
    number = checks.real(name, value)
    if not 0 <= number < 0.5:
        raise checks.InputError(f"{name} must lie in [0, 0.5), so that most data are clean, got {value!r}; try 0.1")
    return number


def _per_client(name: str, value: Any, clients: int, check: Callable[[str, Any], float]) -> np.ndarray:
    array = np.asarray(value)
    if array.ndim == 0:
        return np.full(clients, check(name, array.item()))
    if array.shape != (clients,):
        raise checks.InputError(
            f"{name} must be one number or one per client ({clients}), got an array of shape {array.shape}"
        )
    return np.array([check(f"{name}[{i}]", number) for i, number in enumerate(array.tolist())])


def _sources(source: Any, clients: int) -> tuple[tuple[Source, ...], np.ndarray]:
    """The distinct sources in order of appearance, and which of them each client has."""
    if isinstance(source, str) or callable(source) or not isinstance(source, Iterable):
        return (_source(source),), np.zeros(clients, np.int32)
    each = [_source(item) for item in source]
    if len(each) != clients:
        raise checks.InputError(f"source must be one source or one per client ({clients}), got {len(each)}")
    distinct = tuple(dict.fromkeys(each))
    return distinct, np.array([distinct.index(item) for item in each], np.int32)


def _source(source: Any) -> Source:
    if isinstance(source, type):
        raise checks.InputError(f"source must be an object, got the class {source.__name__}; try {source.__name__}()")
    if not callable(source):
        return SOURCES[checks.one_of("source", source, SOURCES)]
    try:
        hash(source)
    except TypeError:
        raise checks.InputError(f"source must be hashable, got {source!r}; try a frozen dataclass") from None
    return source


def _check_source(source: Source, problem: Problem) -> None:
    """Trace the source once, without computing anything, and refuse what does not fit the problem's samples."""

    def draw(key: Key, clients: Client) -> tuple[Batch, Batch]:
        theta = problem.initial(key)
        batch = problem.reaction.sample(key, theta, trees.take(clients, 0), 4)
        return batch, source(key, batch, theta, jnp.ones(()))

    batch, junk = jax.eval_shape(draw, random.seed_key(0), problem.clients)
    checks.same_structure(f"what source {_name(source)} returns", junk, batch)
    wrong = jax.tree.map(lambda old, new: _is_float(old) != _is_float(new), batch, junk)
    if any(jax.tree.leaves(wrong)):
        raise checks.InputError(
            f"what source {_name(source)} returns must have the dtypes {_dtypes(batch)}, got {_dtypes(junk)}; "
            "leave labels and groups integers"
        )


def _is_float(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jnp.floating))


def _dtypes(batch: Batch) -> str:
    return str(jax.tree.map(lambda leaf: str(leaf.dtype), batch))


def _name(source: Source) -> str:
    """The source's name in ``SOURCES``, or what a person called it."""
    known = [name for name, other in SOURCES.items() if other == source]
    return known[0] if known else getattr(source, "__name__", type(source).__name__)


def _percent(fractions: np.ndarray) -> str:
    ends = dict.fromkeys(f"{100 * value:.3g}%" for value in (fractions.min(), fractions.max()))
    return " to ".join(ends)
