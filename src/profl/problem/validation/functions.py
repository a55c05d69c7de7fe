"""The functions of a problem: do they fit together, and has one changed since it was compiled?

Every function is traced once and nothing is computed. Tracing shows shapes only, so two more things are tried:

* labels: where a family knows classes or groups, a few samples of a user's own reaction are drawn;
* random numbers of the host: numbers of ``np.random`` are drawn once, while tracing, and come back in every batch.
  Two traces then hold different constants.

An exception inside a user's function becomes an ``InputError`` that names the function and what may help.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from profl import checks, random, trees
from profl.problem import push as push_forward
from profl.problem.families import Family
from profl.problem.reaction import Reaction, SampledReaction, Unmeasured
from profl.problem.validation import samples
from profl.storage.fingerprint import local_hash
from profl.typing import Batch, Client, Key, Theta

if TYPE_CHECKING:
    from profl.problem.problem import Problem

ROWS, OTHER_ROWS = 4, 7  # samples to trace with; the second has no divisor in common with the first
LABEL_ROWS = 64  # samples per client whose labels are checked
MESSAGE_LENGTH = 200  # characters of an exception's message
CACHE_SIZE = 4096  # parts whose marks are remembered
_MARKS: dict[Any, str] = {}


def check_functions(problem: Problem) -> None:
    """Refuse functions that do not fit together."""
    key = jax.random.key(0, impl="threefry2x32")
    theta = output_shapes("initial", problem.initial, key=key)
    if not jax.tree.leaves(theta):
        raise checks.InputError(f"initial(key) must return a model of numbers, got {theta}")
    client = trees.row_shape(problem.clients)
    batch = _check_reaction(problem.reaction, key, theta, client)
    z = trees.row_shape(batch)
    samples.check_batch(problem.family, batch)
    _check_scalar("loss", problem.loss, theta, z)
    for limit in problem.functions.outcomes:
        _check_scalar("outcome", limit.outcome, theta, z)
    _check_family(problem, theta, client, batch, z)
    checks.same_structure("project(theta)", output_shapes("project", problem.project, theta=theta), theta)
    signal = output_shapes("signal", problem.signal, theta=theta)
    if len(getattr(signal, "shape", ())) != 1:
        raise checks.InputError(
            f"signal(theta) must be a vector, got {_shapes(signal)}: try profl.trees.ravel or [None]"
        )
    _check_memory(problem)
    if is_user_defined(problem.reaction) and type(problem.family).labels is not Family.labels:
        _check_labels(problem, key)
    if problem.push is not None:
        push_forward.check_arguments(problem.push)
        _check_push(problem)


def is_user_defined(reaction: Reaction) -> bool:
    """Whether a reaction is a user's own, also inside one of profl's."""
    while isinstance(reaction, Unmeasured):
        reaction = reaction.inner
    return isinstance(reaction, SampledReaction) or not type(reaction).__module__.startswith("profl.")


# -- one function each -------------------------------------------------------------------------------------------------


def _check_reaction(reaction: Reaction, key: Key, theta: Theta, client: Client) -> Batch:
    """The shapes of a batch of ROWS samples."""
    (jaxpr, batch), (_, other) = (_trace_sample(reaction, n, key, theta, client) for n in (ROWS, OTHER_ROWS))
    if not jax.tree.leaves(batch):
        raise checks.InputError(f"the reaction must return a batch of n samples, got {batch}: does it end with return?")
    some, more = _row_counts(batch), _row_counts(other)
    if len(some) != 1 or len(more) != 1 or some[0] == 0 or some[0] * OTHER_ROWS != more[0] * ROWS:
        message = (
            f"the reaction must return n samples in every leaf, got {some} for n = {ROWS} and {more} for "
            f"n = {OTHER_ROWS}"
        )
        raise checks.InputError(message + (": does it use n?" if some == more else ""))
    constants = _constants(jaxpr)
    if constants and constants != _constants(_trace_sample(reaction, ROWS, key, theta, client)[0]):
        raise checks.InputError(
            "the reaction must draw all its random numbers from key; called twice with the same one it made different "
            "numbers (np.random?), and compiled they would be the same in every batch: use profl.random.normal(key, n, "
            "p) or jax.random, with other keys from jax.random.split(key)"
        )
    return batch


def _trace_sample(reaction: Reaction, n: int, key: Key, theta: Theta, client: Client) -> tuple[ClosedJaxpr, Batch]:
    make = jax.make_jaxpr(lambda k, t, c: reaction.sample(k, t, c, n), return_shape=True)
    call = partial(make, key, theta, client)
    return call_user_function("reaction(key, theta, client, n)", call, theta=theta, client=client)


def _constants(jaxpr: ClosedJaxpr) -> list[bytes]:
    """The constant arrays of a trace: data of a closure, or numbers that the host drew."""
    parts = [*jaxpr.consts, *(v.val for e in jaxpr.eqns for v in e.invars if isinstance(v, Literal))]
    arrays = [part for part in parts if np.ndim(part) and not jnp.issubdtype(part.dtype, jax.dtypes.prng_key)]
    return [np.asarray(array).tobytes() for array in arrays]


def _check_scalar(name: str, function: Callable[..., Any], theta: Theta, z: Batch) -> None:
    """The loss or an outcome: a number of one sample that has a gradient."""
    value = output_shapes(name, function, theta=theta, z=z)
    signature = f"{name}(theta, z)"
    if value is None:
        raise checks.InputError(f"{signature} of one sample must be a scalar, got None: does it end with return?")
    if getattr(value, "shape", None) != ():
        raise checks.InputError(
            f"{signature} of one sample must be a scalar, got shape {_shapes(value)}: take its jnp.sum or jnp.mean"
        )
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise checks.InputError(f"{signature} must be a number that has a gradient in theta, got {value.dtype}")


def _check_family(problem: Problem, theta: Theta, client: Client, batch: Batch, z: Batch) -> None:
    family = problem.family
    weights = jax.ShapeDtypeStruct((_row_counts(batch)[0],), jnp.float32)
    f = output_shapes("family.estimate", family.estimate, batch=batch, weights=weights)
    if len(getattr(f, "shape", ())) != 1:
        raise checks.InputError(f"the family's estimate must be a vector of shape (p,), got shape {_shapes(f)}")
    density = output_shapes("family.log_prob", family.log_prob, z=z, f=f)
    if _shapes(density) != ():
        raise checks.InputError(f"the family's log_prob(z, f) must be a scalar, got shape {_shapes(density)}")
    if family.shift is not None:
        moved = output_shapes("family.shift", family.apply_shift, z=z, delta=f, f=f)
        checks.same_structure("what the family's shift returns", moved, z)
    if problem.reaction.parameters is not None:
        parameters = output_shapes("reaction.parameters", problem.reaction.parameters, theta=theta, client=client)
        if _shapes(parameters) != f.shape:
            raise checks.InputError(
                f"parameters(theta, client) has shape {_shapes(parameters)}, the estimate {f.shape}"
            )


def _check_memory(problem: Problem) -> None:
    """The state of a reaction keeps its shapes and dtypes, and ``sample_in`` returns what ``sample`` does."""
    key, reaction = jax.random.key(0, impl="threefry2x32"), problem.reaction
    theta, client = jax.eval_shape(lambda c: trees.cast((problem.initial(key), trees.take(c, 0))), problem.clients)
    state = output_shapes("reaction.start", reaction.start, theta=theta, client=client)
    dtypes = [leaf.dtype for leaf in jax.tree.leaves(state)]
    others = {str(dtype) for dtype in dtypes if not (jnp.issubdtype(dtype, jnp.number) or dtype == np.bool_)}
    if others:
        raise checks.InputError(
            f"what the reaction's start returns must hold numbers alone, got {', '.join(sorted(others))}: "
            "move is given a key of its own with every deployment"
        )
    moved = output_shapes("reaction.move", reaction.move, state=state, key=key, theta=theta, client=client)
    checks.same_structure("what the reaction's move returns", moved, state)
    before, after = (jax.tree.map(lambda leaf: leaf.dtype.name, tree) for tree in (state, moved))
    if before != after:
        raise checks.InputError(
            f"what the reaction's move returns must have the dtypes of start, {before}, got {after}"
        )
    if type(reaction).sample_in is Reaction.sample_in:
        return

    def sample_in(state: Any, theta: Theta, client: Client) -> Batch:
        return reaction.sample_in(state, key, theta, client, ROWS)

    batch = output_shapes("reaction.sample", lambda t, c: reaction.sample(key, t, c, ROWS), theta=theta, client=client)
    later = output_shapes("reaction.sample_in", sample_in, state=state, theta=theta, client=client)
    checks.same_structure("what the reaction's sample_in returns", later, batch)


def _check_labels(problem: Problem, key: Key) -> None:
    """A few samples of the first client, the one in the middle and the last."""
    start = problem.initial(key)
    for number in sorted({0, problem.count // 2, problem.count - 1}):
        client = trees.take(problem.clients, number)
        samples.check_labels(problem.family, _draw_labels(problem.reaction, problem.family, key, start, client))


@partial(jax.jit, static_argnums=(0, 1))
def _draw_labels(reaction: Reaction, family: Family, key: Key, theta: Theta, client: Client) -> Any:
    return family.labels(reaction.sample(key, theta, client, LABEL_ROWS))


def _check_push(problem: Problem) -> None:
    """A few samples at the start and beside it: a start of zeros would hide what theta does."""
    start = problem.initial(random.start_key(random.seed_key(0)))
    beside, batch = _move_and_draw(problem.project, problem.reaction, start, trees.cast(trees.take(problem.clients, 0)))
    call_user_function(
        "push(z, deployed, theta)", lambda: push_forward.check(problem.push, batch, [start, beside]), z=batch
    )


@partial(jax.jit, static_argnums=(0, 1))
def _move_and_draw(
    project: Callable[[Theta], Theta], reaction: Reaction, start: Theta, client: Client
) -> tuple[Theta, Batch]:
    """A model beside ``start``, and samples under ``start``."""
    beside = project(jax.tree.map(lambda leaf: leaf + 1 + jnp.arange(leaf.size).reshape(leaf.shape), start))
    return beside, reaction.sample(random.data_key(random.seed_key(0), 0, 0), start, client, ROWS)


def _row_counts(batch: Batch) -> list[int]:
    return sorted({leaf.shape[0] if leaf.ndim else 0 for leaf in jax.tree.leaves(batch)})


def _shapes(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.shape, tree)


# -- calls of a user's function ----------------------------------------------------------------------------------------


def output_shapes(name: str, function: Callable[..., Any], **arguments: Any) -> Any:
    """The shapes that ``function`` returns; ``arguments`` are in order, under the names that people know.

    >>> output_shapes("loss", lambda theta, z: theta["prise"] * z, theta={"price": jnp.ones(1)}, z=jnp.ones(1))
    Traceback (most recent call last):
        ...
    profl.checks.InputError: loss(theta, z) asks for the key 'prise'; theta has 'price'; did you mean 'price'?
    """
    return call_user_function(name, lambda: jax.eval_shape(function, *arguments.values()), **arguments)


def call_user_function(name: str, call: Callable[[], Any], **arguments: Any) -> Any:
    """``call()``, with its exceptions in words; ``arguments`` are those of the function that it calls."""
    signature = name if "(" in name or not arguments else f"{name}({', '.join(arguments)})"
    try:
        return call()
    except checks.InputError:
        raise
    except KeyError as error:
        raise checks.InputError(f"{signature} asks for the key {_missing_key(error, arguments)}") from error
    except Exception as error:
        message = next(iter(str(error).splitlines()), "")[:MESSAGE_LENGTH]
        hint = ""
        if isinstance(error, jax.errors.JAXTypeError):
            hint = (
                " The function is traced and compiled: use jax.numpy in place of numpy, and jnp.where in place of an "
                "`if` on values"
            )
        raise checks.InputError(f"{signature} raised {type(error).__name__}: {message}{hint}") from error


def _missing_key(error: KeyError, arguments: Mapping[str, Any]) -> str:
    key = error.args[0] if error.args else ""
    dicts = {name: list(value) for name, value in arguments.items() if isinstance(value, Mapping)}
    contents = "; ".join(f"{name} has {', '.join(map(repr, keys))}" for name, keys in dicts.items())
    elsewhere = [name for name, keys in dicts.items() if key in keys]
    near = checks.nearest(key, [str(name) for keys in dicts.values() for name in keys])
    hint = f"; it is in {elsewhere[0]}" if elsewhere else f"; did you mean {near!r}?" if near else ""
    return f"{key!r}; {contents or 'none of its arguments is a dict'}{hint}"


# -- changes since a function was compiled -----------------------------------------------------------------------------


def clear_stale_code(*parts: Any) -> tuple[str, ...]:
    """The marks of these parts of a problem or a method, after compiled code of changed ones is cleared.

    JAX finds compiled code by the identity of functions, so after a change of a global, an attribute or a default that
    a function reads it would run what it traced before. Where a mark has changed, all compiled code is cleared: what
    JAX traced inside other programs cannot be told apart.

    >>> rates = {"rate": 1.0}
    >>> def loss(theta): return rates["rate"] * theta
    >>> before = clear_stale_code(loss)
    >>> rates["rate"] = 2.0
    >>> before == clear_stale_code(loss), clear_stale_code(loss) == clear_stale_code(loss)
    (False, True)
    """
    marks = tuple(map(local_hash, parts))
    changed = False
    for part, now in zip(parts, marks, strict=True):
        try:
            changed |= _MARKS.get(part, now) != now
            _MARKS[part] = now
        except TypeError:  # not hashable: JAX finds no compiled code by it
            continue
    if changed or len(_MARKS) > CACHE_SIZE:
        jax.clear_caches()
        _MARKS.clear()
        clear_stale_code(*parts)
    return marks
