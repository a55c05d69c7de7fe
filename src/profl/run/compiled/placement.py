"""How a run is laid out: how many seeds and clients are worked on at once, and over which devices.

On a CPU a block of samples should stay in the cache; on an accelerator a block should be large enough to keep it busy
and small beside its memory. Over several devices seeds are spread where they divide evenly, because seeds never speak
to each other; else the clients of every seed, whose reports meet once a round. The devices may be those of several
processes (``processes``).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from profl import checks, trees
from profl.run.compiled import processes
from profl.run.plan import Population, Settings, batch_shape
from profl.typing import Theta

BLOCK = 2**18  # sampled numbers that stay in the cache of a CPU's core
SHARE = 128  # of an accelerator's bytes: a block in single precision takes 1/32 of its memory, its copies some more
UNKNOWN = 2**33  # bytes of an accelerator that does not say how many it has


class Placement(NamedTuple):
    """How work is divided over chunks and devices. Hashable: a static argument of compiled code."""

    seed_chunk: int
    client_chunk: int
    devices: int = 1
    axis: str = "seeds"  # or "clients"

    @property
    def mesh(self) -> Mesh:
        """The devices, with ``axis`` as the name of their only axis."""
        return Mesh(np.asarray(processes.devices(self.devices)), (self.axis,))


def place(settings: Settings, population: Population, models: Theta, client_chunk: int | None) -> Placement:
    """The placement with as many seeds and clients as a block holds, or ``client_chunk`` clients of one seed."""
    seeds, clients = trees.rows(models), settings.slots
    over_seeds, over_clients = processes.even_device_count(seeds), processes.even_device_count(clients)
    processes.check_divisible(seeds, clients, max(over_seeds, over_clients))
    axis = "seeds" if over_seeds >= over_clients else "clients"
    devices = max(over_seeds, over_clients)
    seeds, clients = (seeds // devices, clients) if axis == "seeds" else (seeds, clients // devices)
    if client_chunk is not None:
        return Placement(1, min(clients, checks.positive_int("client_chunk", client_chunk)), devices, axis)
    batch = batch_shape(settings, population, trees.row_shape(models), settings.sizes[-1])
    numbers = sum(leaf.size for leaf in jax.tree.leaves(batch))
    clients = min(clients, max(1, block_size() // numbers))
    fitting = max(1, block_size() // (numbers * clients))
    return Placement(max(c for c in range(1, seeds + 1) if seeds % c == 0 and c <= fitting), clients, devices, axis)


def block_size() -> int:
    """The number of sampled values to keep in memory at a time."""
    if jax.default_backend() == "cpu":
        return BLOCK
    memory = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", UNKNOWN)
    return max(BLOCK, memory // SHARE)
