"""Random numbers: which key is used where, and bits drawn the way that is fast.

``UNROLLED`` is Threefry-2x32 with its 20 rounds written out, registered with JAX: keys of it are ordinary JAX keys,
all of ``jax.random`` but ``poisson`` takes them, and they give the very bits of the stock keys. On a CPU it is faster
(1.6 times): the stock rounds run as a loop that writes its bits out before what uses them; written out, XLA fuses all
of it. On a GPU both draw about equally fast (an H200: 164 to 169 and 169 to 176 thousand million normals a second).

Every draw of data in a run comes from ``data_key(seed, client, step)`` alone. So all engines see the same data, a
client that is left out of a round changes nothing for the others, and a run can be resumed or repeated in parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl

from profl.typing import Array, Key

_START, _DATA, _PARTICIPATION, _SERVER = 0, 1, 2, 3
_EXPLORE = 2**31 - 1  # far from the small numbers that splitting a key uses
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_one_program = partial(jax.jit, inline=True)  # outside of compiled code; inside of it nothing is left of the function
SEEDS = 2**32  # how many there are: a seed is one word of a key


def seed_key(seed: int | Array) -> Key:
    """The root key of a seed, of the implementation that is fast on JAX's default backend.

    >>> bool((jax.random.bits(seed_key(3), 5) == jax.random.bits(jax.random.key(3), 5)).all())
    True
    """
    return jax.random.key(seed, impl=_implementation())


def _implementation() -> Any:
    return UNROLLED if jax.default_backend() == "cpu" else _STOCK


@_one_program
def start_key(root: Key) -> Key:
    """The key of the initial model."""
    return jax.random.fold_in(root, _START)


def root_keys(seeds: Sequence[int] | np.ndarray) -> Key:
    """``seed_key`` of every seed, one row each, without a program: a key is the seed's two words.

    >>> bool(root_keys([3])[0] == seed_key(3))
    True
    """
    words = np.stack([np.zeros(len(seeds), np.uint32), np.asarray(seeds, np.uint32)], 1)
    return jax.random.wrap_key_data(jax.device_put(words), impl=_implementation())


def start_keys(seeds: Sequence[int] | np.ndarray) -> Key:
    """The keys of the initial models of seeds, one row each."""
    return _start_keys(root_keys(seeds))


_start_keys = jax.jit(jax.vmap(start_key))


def data_key(root: Key, client: int | Array, step: int | Array) -> Key:
    """The key of what client ``client`` draws at its local step number ``step``, counted over the whole run."""
    return _fold(root, _DATA, client, step)


def participation_key(root: Key, round_: int | Array) -> Key:
    """The key that chooses who takes part in a round."""
    return _fold(root, _PARTICIPATION, round_)


def server_key(root: Key, round_: int | Array) -> Key:
    """The key of what the server draws itself in a round (the seeds of its clusters)."""
    return _fold(root, _SERVER, round_)


@_one_program
def _fold(key: Key, *words: int | Array) -> Key:
    """``key`` with one word after the other folded in: a loop, so that a program holds the rounds of one."""
    numbers = jnp.stack([jnp.asarray(word).astype(jnp.uint32) for word in words])
    return jax.lax.scan(_fold_one, key, numbers)[0]


def _fold_one(key: Key, word: Array) -> tuple[Key, None]:
    return jax.random.fold_in(key, word), None


def explore_key(key: Key) -> Key:
    """The key of the perturbation of what is deployed, from the key of the data that the deployment brings in."""
    return jax.random.fold_in(key, _EXPLORE)


@partial(_one_program, static_argnums=1)
def signs(key: Key, n: int) -> Array:
    """n numbers, each 1 or -1 with equal chance.

    >>> sorted(set(signs(seed_key(0), 100).tolist()))
    [-1, 1]
    """
    return 1 - 2 * (_bits(key, (n,)) >> 31).astype(jnp.int32)


@partial(_one_program, static_argnums=1)
def explore_signs(key: Key, n: int) -> Array:
    """``signs(explore_key(key), n)``, in a loop of two turns: the key first, then the signs, by the same rounds.

    >>> bool((explore_signs(seed_key(0), 5) == signs(explore_key(seed_key(0)), 5)).all())
    True
    """
    explore, counter = jnp.full((n,), _EXPLORE, jnp.uint32), jax.lax.broadcasted_iota(jnp.uint32, (n,), 0)

    def turn(words: Array, second: Array) -> tuple[Array, None]:
        return _looped(words[:, 0], second), None

    data = jnp.broadcast_to(jax.random.key_data(key)[:, None], (2, n))
    a, b = jax.lax.scan(turn, data, jnp.stack([explore, counter]), unroll=jax.default_backend() != "cpu")[0]
    return 1 - 2 * ((a ^ b) >> 31).astype(jnp.int32)


def normal(key: Key, n: int, *shape: int) -> Array:
    """Standard normals of shape (n, *shape), samples first: the numbers of ``jax.random.normal(key, (*shape, n))``.

    The samples lie innermost in memory and are handed on transposed, so a reduction over them runs along contiguous
    memory: on a CPU that alone is worth a factor of two to three.

    >>> normal(seed_key(0), 4, 2).shape
    (4, 2)
    """
    return _samples_first(key, (*shape, n))


@partial(_one_program, static_argnums=1)
def _samples_first(key: Key, shape: tuple[int, ...]) -> Array:
    """Normals drawn in ``shape``, its last axis handed on as the first one."""
    return jnp.moveaxis(_normal(key, shape), -1, 0)


def _normal(key: Key, shape: tuple[int, ...]) -> Array:
    """The numbers of ``jax.random.normal(key, shape)``; in single precision without its nest of functions."""
    if jnp.result_type(float) != jnp.float32:
        return jax.random.normal(key, shape)
    bits = jax.random.bits(key, shape) >> 9 | np.uint32(0x3F800000)  # 23 of them, as numbers from 1 to 2
    low = np.nextafter(np.float32(-1), np.float32(0))
    unit = (jax.lax.bitcast_convert_type(bits, jnp.float32) - 1) * (np.float32(1) - low) + low
    return np.float32(np.sqrt(2)) * jax.lax.erf_inv(unit)


def _bits(key: Key, shape: tuple[int, ...]) -> Array:
    """The bits of ``jax.random.bits(key, shape)``: both words of Threefry-2x32-20 of a counter, xor-ed."""
    counter = jax.lax.broadcasted_iota(jnp.uint32, (math.prod(shape),), 0).reshape(shape)
    a, b = threefry(jax.random.key_data(key), jnp.zeros_like(counter), counter)
    return a ^ b


@jax.jit  # traced once for all keys, in programs and outside
def threefry(key: Array, a: Array, b: Array) -> tuple[Array, Array]:
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011) of the counters (a, b), under a key of two words."""
    one, two = key
    words = [jnp.broadcast_to(word, b.shape) for word in (one, two, one ^ two ^ jnp.uint32(_PARITY))]
    a, b = a + words[0], b + words[1]
    for i in range(5):
        for turn in _ROTATIONS[i % 2]:
            a = a + b
            b = a ^ ((b << turn) | (b >> (32 - turn)))
        a, b = a + words[(i + 1) % 3], b + words[(i + 2) % 3] + jnp.uint32(i + 1)
    return a, b


def _looped(key: Array, word: Array) -> Array:
    """``threefry`` of counters (0, word) as a loop over groups of four rounds: few words cost nothing."""
    one, two = key
    words = jnp.stack([one, two, one ^ two ^ jnp.uint32(_PARITY)])
    turns: Any = np.array([_ROTATIONS[i % 2] for i in range(5)], np.uint32), np.arange(1, 6, dtype=np.uint32)
    first = jnp.broadcast_to(one, word.shape), two + word, words
    (a, b, _), _ = jax.lax.scan(_four_rounds, first, turns)
    return jnp.stack([a, b])


def _four_rounds(
    state: tuple[Array, Array, Array], turns: tuple[Array, Array]
) -> tuple[tuple[Array, Array, Array], None]:
    (a, b, words), (rotations, number) = state, turns
    for turn in rotations:
        a = a + b
        b = a ^ ((b << turn) | (b >> (32 - turn)))
    words = jnp.concatenate([words[1:], words[:1]])
    return (a + words[0], b + words[1] + number, words), None


def _stock(key: Array) -> Key:
    return jax.random.wrap_key_data(key, impl=_STOCK)


def _random_bits(key: Array, width: int, shape: tuple[int, ...]) -> Array:
    """Words of 32 bits from the rounds written out; other widths, and more words than a counter has, from the stock."""
    if width == 32 and math.prod(shape) < 2**32:
        return _bits(_stock(key), shape)
    return jax.random.bits(_stock(key), shape, f"uint{width}")


_STOCK = "threefry2x32"
UNROLLED = define_prng_impl(
    key_shape=(2,),
    seed=lambda seed: jax.random.key_data(jax.random.key(seed, impl=_STOCK)),
    split=lambda key, shape: jax.random.key_data(jax.random.split(_stock(key), shape)),
    random_bits=_random_bits,
    fold_in=lambda key, data: _looped(key, jnp.uint32(data)),
    name="threefry2x32_unrolled",
    tag="fru",
)


@partial(_one_program, static_argnums=1)
def indices(key: Key, n: int, count: int | Array) -> Array:
    """n whole numbers drawn uniformly from 0 .. count - 1, with replacement; ``count`` may be traced, up to 2**20.

    >>> sorted(set(indices(seed_key(0), 100, 3).tolist()))
    [0, 1, 2]
    """
    unit = (_bits(key, (n,)) >> 8).astype(jnp.float32) * np.float32(2**-24)
    return jnp.minimum((unit * jnp.asarray(count, jnp.float32)).astype(jnp.int32), jnp.asarray(count, jnp.int32) - 1)
