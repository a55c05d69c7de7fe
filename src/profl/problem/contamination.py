"""Contamination: a share of what comes in is junk (paper, Section II-B, Huber's model).

    P_i(theta) = (1 - eps_i) D_i(theta) + eps_i Q_i

Each sample is replaced by junk with probability eps_i, independently. Only the data change: the risk, the optimum and
the stable point stay those of D_i, because they are what a robust method is to find in spite of the junk. A source says
what Q_i is: ``profl.problem.sources``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks, random, trees
from profl.problem.problem import Problem, check_problem
from profl.problem.reaction import WrappedReaction
from profl.problem.sources import Source, dtypes, get, is_float, name_of, samples_first, samples_last
from profl.problem.validation.functions import call_user_function
from profl.typing import Array, Batch, Client, Key, Theta

JUNK = 0x6A756E6B  # "junk"; a small number folded into a key gives one of the keys that splitting it gives
MOST = 0.5  # of the samples: the paper allows eps up to 1, but from one half on nothing says which part is the data
TRIED_SAMPLES = 4  # that a source is traced with: any number of rows will do


@dataclass(frozen=True)
class ContaminatedReaction(WrappedReaction):
    """``inner`` with a share of junk; exact answers are those of the clean data.

    A client is ``{"clean": the clean reaction's, "fraction": eps, "source": index into sources, "distance": ()}``.
    """

    sources: tuple[Source, ...]

    client_key = "clean"

    def sample(self, key: Key, theta: Theta, client: Client, n: int) -> Batch:
        return self.sample_and_mask(key, theta, client, n)[0]

    def sample_and_mask(self, key: Key, theta: Theta, client: Client, n: int) -> tuple[Batch, Array]:
        """(a batch, which of its samples are junk), for diagnostics: no client knows the second.

        The samples that are not junk are exactly those that ``inner`` draws from the same key. (Compiled, a few may
        differ in their last bits: what is fused with the junk may be rounded once where ``inner`` alone rounds twice.)
        """
        return self._mix(self.inner.sample(key, theta, client["clean"], n), key, theta, client)

    def _mix(self, batch: Batch, key: Key, theta: Theta, client: Client) -> tuple[Batch, Array]:
        which, what = jax.random.split(jax.random.fold_in(key, JUNK + self._layer))
        is_junk = jax.random.bernoulli(which, client["fraction"], (trees.rows(batch),))
        branches = [partial(_junk, source) for source in self.sources]
        if len(branches) == 1:
            junk = branches[0](what, batch, theta, client["distance"])
        else:
            junk = jax.lax.switch(client["source"], branches, what, batch, theta, client["distance"])
        return _choose(is_junk, junk, batch), is_junk

    def sample_in(self, state: Any, key: Key, theta: Theta, client: Client, n: int) -> Batch:
        return self._mix(self.inner.sample_in(state, key, theta, client["clean"], n), key, theta, client)[0]

    @property
    def _layer(self) -> int:
        """The number of contaminations inside this one: each draws its junk from a key of its own."""
        return self.inner._layer + 1 if isinstance(self.inner, ContaminatedReaction) else 0


@checks.explain_call
def contaminate(problem: Problem, fraction: Any, source: Any = "blob", *, distance: Any = 10.0) -> Problem:
    """``problem`` with junk among its data; its risk, optimum and stable point stay those of the clean data.

    A problem without exact answers is to be solved first, ``contaminate(problem.solve(), ...)``: solved afterwards, its
    answers would be those of the junk.

    Args:
      fraction: eps_i in [0, 0.5), the expected share of junk: one number, or one per client.
      source: what the junk is: a name in ``profl.problem.sources.SOURCES``, a function
        ``(key, batch, theta, distance) -> batch``, or one of these per client.
      distance: how far away it lies, in standard deviations of the clean data: one number, or one per client.

    >>> import profl
    >>> clean = profl.cases.pricing(clients=4)
    >>> case = contaminate(clean, 0.2, "blob", distance=10)
    >>> case.name, bool(np.isclose(case.risk(np.ones(5)), clean.risk(np.ones(5))))
    ('pricing with 20% blob', True)
    >>> client = trees.take(case.clients, 0)
    >>> draw = jax.jit(case.reaction.sample_and_mask, static_argnums=3)
    >>> batch, is_junk = draw(random.seed_key(0), np.ones(5), client, 1000)
    >>> batch.shape, round(float(is_junk.mean()), 1)
    ((1000, 5), 0.2)
    """
    check_problem(problem)
    fractions = _per_client("fraction", fraction, problem.count, _fraction)
    distances = _per_client("distance", distance, problem.count, checks.positive)
    sources, index = _sources(source, problem.count)
    for each in sources:
        _check_source(each, problem)
    return replace(
        problem,
        name=f"{problem.name} with {_percent(fractions)} {'/'.join(map(name_of, sources))}",
        clients={"clean": problem.clients, "fraction": fractions, "source": index, "distance": distances},
        reaction=ContaminatedReaction(problem.reaction, sources),
    )


def _choose(is_junk: Array, junk: Batch, batch: Batch) -> Batch:
    """Rows of ``junk`` where ``is_junk``, else of ``batch``."""

    def choose(new: Array, old: Array) -> Array:
        return samples_first(jnp.where(is_junk, samples_last(new), samples_last(old)))

    return jax.tree.map(choose, junk, batch)


def _junk(source: Source, key: Key, batch: Batch, theta: Theta, distance: Array) -> Batch:
    """The junk of a source, in the dtypes of the batch."""
    return jax.tree.map(lambda new, old: new.astype(old.dtype), source(key, batch, theta, distance), batch)


# -- checks of what is passed in ---------------------------------------------------------------------------------------


def _fraction(name: str, value: Any) -> float:
    number = checks.real(name, value)
    if not 0 <= number < MOST:
        raise checks.InputError(f"{name} must lie in [0, {MOST}), so that most data are clean, got {value!r}; try 0.1")
    return number


def _per_client(name: str, value: Any, clients: int, check: Callable[[str, Any], float]) -> np.ndarray:
    if isinstance(value, (list, tuple)):
        checks.numbers_of(name, value, f"one number or one per client ({clients})")
    array = np.asarray(value)
    if array.ndim == 0:
        return np.full(clients, check(name, array.item()))
    if array.shape != (clients,):
        raise checks.InputError(
            f"{name} must be one number or one per client ({clients}), got an array of shape {array.shape}"
        )
    return np.array([check(f"{name}[{i}]", number) for i, number in enumerate(array.tolist())])


def _sources(source: Any, clients: int) -> tuple[tuple[Source, ...], np.ndarray]:
    """(the distinct sources in order of appearance, the index of each client's)."""
    if isinstance(source, str) or callable(source) or not isinstance(source, Iterable):
        return (get(source),), np.zeros(clients, np.int32)
    each = [get(item) for item in source]
    if len(each) != clients:
        raise checks.InputError(f"source must be one source or one per client ({clients}), got {len(each)}")
    distinct = tuple(dict.fromkeys(each))
    return distinct, np.array([distinct.index(item) for item in each], np.int32)


def _check_source(source: Source, problem: Problem) -> None:
    """Refuse a source whose junk does not have the structure of the problem's samples; it is only traced."""

    def draw(key: Key, clients: Client) -> tuple[Batch, Batch]:
        theta = problem.initial(key)
        batch = problem.reaction.sample(key, theta, trees.take(clients, 0), TRIED_SAMPLES)
        return batch, source(key, batch, theta, jnp.ones(()))

    call = partial(jax.eval_shape, draw, random.seed_key(0), problem.clients)
    batch, junk = call_user_function(f"source {name_of(source)}(key, batch, theta, distance)", call)
    checks.same_structure(f"what source {name_of(source)} returns", junk, batch)
    wrong = jax.tree.map(lambda old, new: is_float(old) != is_float(new), batch, junk)
    if any(jax.tree.leaves(wrong)):
        raise checks.InputError(
            f"what source {name_of(source)} returns must have the dtypes {dtypes(batch)}, got {dtypes(junk)}; "
            "leave labels and groups integers"
        )


def _percent(fractions: np.ndarray) -> str:
    ends = dict.fromkeys(f"{100 * value:.3g}%" for value in (fractions.min(), fractions.max()))
    return " to ".join(ends)
