"""Do the parts of a problem fit together? Every function is traced once, and nothing is computed.

Two things no shape shows. Labels: where a family knows classes or groups, a few samples of a user's own reaction are
drawn. Host randomness: numbers of ``np.random`` would be drawn once, while tracing, and come back in every batch; two
traces then hold different constants.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from profl import checks, random, trees
from profl.problem import misfits
from profl.problem.families import Family
from profl.problem.push import check as check_push
from profl.problem.reaction import Reaction, SampledReaction
from profl.problem.trial import attempted, traced
from profl.typing import Batch, Client, Key, Theta

if TYPE_CHECKING:
    from profl.problem.problem import Problem

TRIED, ALSO = 4, 7  # samples to trace with; the second has no divisor in common with the first
LABELLED = 64  # samples a client whose labels are looked at


def check(problem: Problem) -> None:
    """Refuse what does not fit together."""
    key = jax.random.key(0, impl="threefry2x32")
    theta = traced("initial", problem.initial, key=key)
    if not jax.tree.leaves(theta):
        raise checks.InputError(f"initial(key) must return a model of numbers, got {theta}")
    client = trees.row_shape(problem.clients)
    batch = _batch(problem.reaction, key, theta, client)
    z = trees.row_shape(batch)
    misfits.check_batch(problem.family, batch)
    _loss(problem, theta, z)
    _family(problem, theta, client, batch, z)
    checks.same_structure("project(theta)", traced("project", problem.project, theta=theta), theta)
    signal = traced("signal", problem.signal, theta=theta)
    if len(getattr(signal, "shape", ())) != 1:
        raise checks.InputError(
            f"signal(theta) must be a vector, got {_shape(signal)}: try profl.trees.ravel or [None]"
        )
    _memory(problem)
    if asked(problem.reaction) and type(problem.family).labels is not Family.labels:
        _labels(problem, key)
    if problem.push is not None:
        _push(problem)


def _batch(reaction: Reaction, key: Key, theta: Theta, client: Client) -> Batch:
    """The shapes of a batch of TRIED samples."""
    (jaxpr, batch), (_, other) = (_drawn(reaction, n, key, theta, client) for n in (TRIED, ALSO))
    if not jax.tree.leaves(batch):
        raise checks.InputError(f"the reaction must return a batch of n samples, got {batch}: does it end with return?")
    some, more = _rows(batch), _rows(other)
    if len(some) != 1 or len(more) != 1 or some[0] == 0 or some[0] * ALSO != more[0] * TRIED:
        asked = (
            f"the reaction must return n samples in every leaf, got {some} for n = {TRIED} and {more} for n = {ALSO}"
        )
        raise checks.InputError(asked + (": does it use n?" if some == more else ""))
    if _numbers(jaxpr) and _numbers(jaxpr) != _numbers(_drawn(reaction, TRIED, key, theta, client)[0]):
        raise checks.InputError(
            "the reaction must draw all its random numbers from key; called twice with the same one it made different "
            "numbers (np.random?), and compiled they would be the same in every batch: use profl.random.normal(key, n, "
            "p) or jax.random, with other keys from jax.random.split(key)"
        )
    return batch


def _drawn(reaction: Reaction, n: int, key: Key, theta: Theta, client: Client) -> tuple[ClosedJaxpr, Batch]:
    make = jax.make_jaxpr(lambda k, t, c: reaction.sample(k, t, c, n), return_shape=True)
    return attempted("reaction(key, theta, client, n)", lambda: make(key, theta, client), theta=theta, client=client)


def _numbers(jaxpr: ClosedJaxpr) -> list[bytes]:
    """The arrays in a trace that were there before it: data of a closure, or numbers that the host drew."""
    parts = [*jaxpr.consts, *(v.val for e in jaxpr.eqns for v in e.invars if isinstance(v, Literal))]
    arrays = [part for part in parts if np.ndim(part) and not jnp.issubdtype(part.dtype, jax.dtypes.prng_key)]
    return [np.asarray(array).tobytes() for array in arrays]


def _loss(problem: Problem, theta: Theta, z: Batch) -> None:
    loss = traced("loss", problem.loss, theta=theta, z=z)
    if loss is None:
        raise checks.InputError("loss(theta, z) of one sample must be a scalar, got None: does it end with return?")
    if getattr(loss, "shape", None) != ():
        raise checks.InputError(
            f"loss(theta, z) of one sample must be a scalar, got shape {_shape(loss)}: take its jnp.sum or jnp.mean"
        )
    if not jnp.issubdtype(loss.dtype, jnp.floating):
        raise checks.InputError(f"loss(theta, z) must be a number that has a gradient in theta, got {loss.dtype}")


def _family(problem: Problem, theta: Theta, client: Client, batch: Batch, z: Batch) -> None:
    family = problem.family
    equal = jax.ShapeDtypeStruct((_rows(batch)[0],), jnp.float32)
    f = traced("family.estimate", family.estimate, batch=batch, weights=equal)
    if len(getattr(f, "shape", ())) != 1:
        raise checks.InputError(f"the family's estimate must be a vector of shape (p,), got shape {_shape(f)}")
    density = traced("family.log_prob", family.log_prob, z=z, f=f)
    if _shape(density) != ():
        raise checks.InputError(f"the family's log_prob(z, f) must be a scalar, got shape {_shape(density)}")
    if family.shift is not None:
        moved = traced("family.shift", family.moved, z=z, delta=f, f=f)
        checks.same_structure("what the family's shift returns", moved, z)
    if problem.reaction.parameters is not None:
        stated = traced("reaction.parameters", problem.reaction.parameters, theta=theta, client=client)
        if _shape(stated) != f.shape:
            raise checks.InputError(f"parameters(theta, client) has shape {_shape(stated)}, the estimate {f.shape}")


def _memory(problem: Problem) -> None:
    """People's state has one shape for good, and what comes in from it is what comes in at once."""
    key, reaction = jax.random.key(0, impl="threefry2x32"), problem.reaction
    theta, client = jax.eval_shape(lambda c: trees.cast((problem.initial(key), trees.take(c, 0))), problem.clients)
    state = traced("reaction.start", reaction.start, theta=theta, client=client)
    kinds = {str(leaf.dtype) for leaf in jax.tree.leaves(state) if not _numeric(leaf)}
    if kinds:
        raise checks.InputError(
            f"what the reaction's start returns must hold numbers alone, got {', '.join(sorted(kinds))}: "
            "move is given a key of its own with every deployment"
        )
    moved = traced("reaction.move", reaction.move, state=state, key=key, theta=theta, client=client)
    checks.same_structure("what the reaction's move returns", moved, state)
    before, after = (jax.tree.map(lambda leaf: leaf.dtype.name, tree) for tree in (state, moved))
    if before != after:
        raise checks.InputError(
            f"what the reaction's move returns must have the dtypes of start, {before}, got {after}"
        )
    if type(reaction).sample_in is Reaction.sample_in:
        return
    batch = traced("reaction.sample", lambda t, c: reaction.sample(key, t, c, TRIED), theta=theta, client=client)
    drawn = traced(
        "reaction.sample_in",
        lambda s, t, c: reaction.sample_in(s, key, t, c, TRIED),
        state=state,
        theta=theta,
        client=client,
    )
    checks.same_structure("what the reaction's sample_in returns", drawn, batch)


def asked(reaction: Reaction) -> bool:
    """Whether a reaction is a user's own, also inside one of ours; ours are tested, and what they hold is looked at."""
    while isinstance(inner := getattr(reaction, "reaction", None), Reaction):
        reaction = inner
    return isinstance(reaction, SampledReaction) or not type(reaction).__module__.startswith("profl.")


def _labels(problem: Problem, key: Key) -> None:
    """On a few samples of the first client, the one in the middle and the last."""
    start = problem.initial(key)
    for number in sorted({0, problem.count // 2, problem.count - 1}):
        client = trees.take(problem.clients, number)
        misfits.check_labels(problem.family, _drawn_labels(problem.reaction, problem.family, key, start, client))


@partial(jax.jit, static_argnums=(0, 1))
def _drawn_labels(reaction: Reaction, family: Family, key: Key, theta: Theta, client: Client) -> Any:
    return family.labels(reaction.sample(key, theta, client, LABELLED))


def _push(problem: Problem) -> None:
    """On a few samples, at the start and beside it: a start of zeros would hide what theta does."""
    key = random.seed_key(0)
    start = problem.initial(random.start_key(key))
    beside = problem.project(jax.tree.map(lambda leaf: leaf + 1 + jnp.arange(leaf.size).reshape(leaf.shape), start))
    client = trees.cast(trees.take(problem.clients, 0))
    batch = problem.reaction.sample(random.data_key(key, 0, 0), start, client, TRIED)
    attempted("push(z, deployed, theta)", lambda: check_push(problem.push, batch, [start, beside]), z=batch)


def _rows(batch: Batch) -> list[int]:
    return sorted({leaf.shape[0] if leaf.ndim else 0 for leaf in jax.tree.leaves(batch)})


def _numeric(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jnp.number) or leaf.dtype == bool)


def _shape(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.shape, tree)
