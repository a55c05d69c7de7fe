"""``python -m benchmarks speed``: what a run costs beside its random numbers. ``growth`` has ``scale`` and ``memory``.

Pricing, d = 5, n = 500, R = 5. Machines are noisy: everything in a row is timed in one process, in turns, and a figure
is the median over turns of the ratio within a turn. One client-step is one client doing one local step. The ceiling is
drawing the same normals by the fastest way found (``profl.random.normal``) and averaging them, in the same chunks.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import peers
from benchmarks.bench import Bench
from benchmarks.growth import CLIENT_STEPS, QUICK_TURNS, TURNS, memory, scale
from benchmarks.peers import D, N, R
from benchmarks.timing import in_turns, ratio
from profl import random
from profl.cases import pricing
from profl.methods import pfl, pofl, profl
from profl.run.compiled.placement import block_size
from profl.run.compiled.simulate import simulate
from profl_papers.claims import Part, at_least, at_most

__all__ = ["memory", "scale", "speed"]

SHAPES = ((10, 1), (10, 10), (100, 10), (1000, 1), (1000, 10))
"""Clients x seeds."""
QUICK_SHAPES, QUICK_STEPS = SHAPES[:2], CLIENT_STEPS // 20
SIZES, QUICK_SIZES = (10, 100, 1000), (10,)
"""Clients that Flower and pfl-research get."""

NEAR_CEILING, SMALL_NEAR_CEILING = 1.5, 2.5
"""PoFL's time over the ceiling's; ten clients and one seed are too little work to hide what a step costs by itself."""
LIKE_PAPER = 1.3
"""The default estimator may take this much longer than the paper's, which does less."""
FILTERED = 2
"""ProFL over PoFL: looking at every sample once more may cost as much as drawing it."""
OVER_NUMPY, OVER_NUMPY_THREADS = 2.5, 1.5
"""Careful NumPy's time over PoFL's, on one thread and on two."""
OVER_FLOWER, OVER_PFL_RESEARCH = 50, 8
"""How many times the client-steps per second of the other simulations, whose clients take turns in Python."""
PEER_STEPS, PEER_WARM_UP = 2000, 2
"""Client-steps that the slow ones are timed over, and rounds on top, so that even 1000 clients make three."""
PEER_TURNS = 3


def speed(seeds: int = 10, quick: bool = False) -> Bench:
    """PoFL and ProFL against the ceiling and against NumPy, for every shape; then Flower and pfl-research."""
    turns, steps = (QUICK_TURNS, QUICK_STEPS) if quick else (TURNS, CLIENT_STEPS)
    shapes, sizes = (QUICK_SHAPES, QUICK_SIZES) if quick else (SHAPES, SIZES)
    parts: dict[str, Callable[[], Part]] = {
        f"{clients} clients x {each} seeds": partial(shape, clients, each, turns, steps) for clients, each in shapes
    }
    return Bench(timed=parts | {"federations": partial(federations, sizes, steps)})


def shape(clients: int, seeds: int, turns: int, steps: int) -> Part:
    """One number of clients and seeds, over about ``steps`` client-steps."""
    rounds = max(1, steps // (clients * seeds * R))
    case = pricing(clients=clients)

    def ours(method: Any) -> Callable[[], Any]:
        return partial(simulate, case, method, rounds=rounds, seeds=range(seeds), record_every=rounds, progress=False)

    times = in_turns(
        {
            "ceiling": ceiling(clients * seeds, rounds),
            "pfl": ours(pfl()),
            "pofl": ours(pofl()),
            "pofl, paper's J": ours(pofl(jacobian="paper")),
            "profl": ours(profl()),
            "NumPy, one thread": partial(peers.numpy_batched, clients, seeds, rounds),
            "NumPy, two threads": partial(peers.numpy_batched, clients, seeds, rounds, 2),
        },
        turns,
    )
    done, name = clients * seeds * rounds * R, f"{clients} x {seeds}"
    rows = [
        {
            "part": f"speed, {name} clients x seeds",
            "who": who,
            "client-steps / s": done / statistics.median(own),
            "time / ceiling": ratio(own, times["ceiling"]),
        }
        for who, own in times.items()
    ]
    bar = SMALL_NEAR_CEILING if (clients, seeds) == SHAPES[0] else NEAR_CEILING
    claims = [
        at_most(f"{name}: PoFL over the ceiling", ratio(times["pofl"], times["ceiling"]), bar),
        at_most(
            f"{name}: PoFL over PoFL with the paper's estimator",
            ratio(times["pofl"], times["pofl, paper's J"]),
            LIKE_PAPER,
        ),
        at_most(f"{name}: ProFL over PoFL", ratio(times["profl"], times["pofl"]), FILTERED),
        at_least(
            f"{name}: NumPy on one thread over PoFL", ratio(times["NumPy, one thread"], times["pofl"]), OVER_NUMPY
        ),
        at_least(
            f"{name}: NumPy on two threads over PoFL",
            ratio(times["NumPy, two threads"], times["pofl"]),
            OVER_NUMPY_THREADS,
        ),
    ]
    return Part(rows, claims)


def ceiling(batches: int, rounds: int) -> Callable[[], Any]:
    """Draw (n, d) normals for every client of every seed in every step, and average them: compiled."""
    chunk = max(c for c in range(1, batches + 1) if batches % c == 0 and c * N * D <= max(block_size(), N * D))

    @jax.jit
    def draw(root: random.Key) -> jax.Array:
        def one(client: jax.Array, step: jax.Array) -> jax.Array:
            return jnp.mean(random.normal(random.data_key(root, client, step), N, D), axis=0)

        def body(total: jax.Array, step: jax.Array) -> tuple[jax.Array, None]:
            rows = jnp.arange(batches).reshape(-1, chunk)
            means = jax.lax.map(lambda row: jax.vmap(one, (0, None))(row, step), rows)
            return total + means.reshape(batches, D), None

        return jax.lax.scan(body, jnp.zeros((batches, D)), jnp.arange(rounds * R))[0]

    return lambda: draw(random.seed_key(0)).block_until_ready()


def federations(sizes: tuple[int, ...], steps: int) -> Part:
    """The same work by Flower's simulation (its start-up left out) and by pfl-research, where they are installed."""
    rows: list[dict[str, Any]] = []
    claims = []
    for clients in sizes:
        case, rounds = pricing(clients=clients), max(1, steps // (clients * R))
        run = partial(simulate, case, pofl(), rounds=rounds, seeds=[0], record_every=rounds, progress=False)
        few = max(1, PEER_STEPS // (clients * R))
        loop = statistics.median(in_turns({"loop": partial(peers.numpy_loop, clients, few)}, PEER_TURNS)["loop"])
        ours = clients * R * rounds / statistics.median(in_turns({"pofl": run}, TURNS)["pofl"])
        rows += [
            _federation("profl", clients, ours),
            _federation("NumPy, one client at a time", clients, clients * R * few / loop),
        ]
        for name, here, other, bar in PEERS:
            if not here():
                rows.append(_federation(f"{name}: not installed, skipped", clients, None))
                continue
            more = few + PEER_WARM_UP
            theirs = clients * R * more / other(clients, more)
            rows.append(_federation(name, clients, theirs))
            claims.append(at_least(f"{clients} clients: profl over {name}", ours / theirs, bar))
    return Part(rows, claims)


PEERS = (
    ("Flower's simulation", peers.has_flower, peers.flower, OVER_FLOWER),
    ("pfl-research", peers.has_pfl_research, peers.pfl_research, OVER_PFL_RESEARCH),
)


def _federation(who: str, clients: int, rate: float | None) -> dict[str, Any]:
    return {"part": "federations", "who": who, "clients": clients, "client-steps / s": rate}
