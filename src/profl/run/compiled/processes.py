"""One run by several processes, each with devices of its own: what ``jax.distributed.initialize`` has connected.

Every process calls ``simulate`` with the same arguments, prepares the whole run, and gives its devices their part of
the seeds or of the clients. Inside the compiled program XLA passes on what clients report; at the end of a segment
every process gets the records, so that all return the same run. In a process by itself nothing here does anything.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from profl import checks
from profl.results.callbacks import Watch
from profl.run.round import Carry
from profl.typing import Key


def several() -> bool:
    """Whether this process is one of several."""
    return jax.process_count() > 1


def is_first() -> bool:
    """Whether this process is the one that writes: the first, or the only one."""
    return jax.process_index() == 0


def devices(count: int) -> list[jax.Device]:
    """``count`` devices, as many of each process."""
    each = count // jax.process_count()
    own = [[d for d in jax.devices() if d.process_index == process] for process in range(jax.process_count())]
    return [device for of_process in own for device in of_process[:each]]


def even_device_count(rows: int) -> int:
    """The largest number of devices, as many of each process, that divides ``rows``; 0 where none does."""
    processes = jax.process_count()
    counts = [processes * each for each in range(1, jax.local_device_count() + 1)]
    return max((count for count in counts if rows % count == 0), default=0)


def check_divisible(seeds: int, clients: int, found: int) -> None:
    """Refuse a run of which some process would get no part."""
    if not found:
        raise checks.InputError(
            f"the seeds or the clients of a round must be a multiple of the {jax.process_count()} processes, "
            f"got {seeds} seeds and {clients} clients"
        )


class Layout:
    """How the arrays of a run lie on the devices of ``mesh``: split along ``axis``, "seeds" or "clients"."""

    def __init__(self, mesh: Mesh, axis: str, clients: int) -> None:
        self.same = NamedSharding(mesh, PartitionSpec())
        self.seeds = NamedSharding(mesh, PartitionSpec("seeds")) if axis == "seeds" else self.same
        by_client = axis == "clients" and clients % mesh.size == 0  # else every device holds all states
        self.clients = NamedSharding(mesh, PartitionSpec("clients")) if by_client else self.same
        self.states = NamedSharding(mesh, PartitionSpec(None, "clients")) if by_client else self.seeds

    def spread(self, carry: Carry, population: Any, roots: Key) -> tuple[Carry, Any, Key]:
        """The arrays of a run, which every process has as a whole, laid over the devices of all processes."""
        if not several():
            return carry, population, roots
        return self._each(_lay, carry), _lay(population, self.clients), _lay(roots, self.seeds)

    def constrain(self, carry: Carry, records: Any) -> tuple[Carry, Any]:
        """Within the program: the carry lies as it came, and every process gets all records."""
        if not several():
            return carry, records
        constrain = jax.lax.with_sharding_constraint
        return self._each(constrain, carry), constrain(records, self.same)

    def _each(self, function: Callable[[Any, NamedSharding], Any], carry: Carry) -> Carry:
        """``function`` of every field of the carry and its layout."""
        fields = carry._asdict().items()
        changed: Any = {
            name: function(value, self.states if name == "states" else self.seeds) for name, value in fields
        }
        return Carry(**changed)


def _lay(tree: Any, sharding: NamedSharding) -> Any:
    """Every leaf with this layout over all processes; each of them has the whole leaf."""

    def one(leaf: Any) -> jax.Array:
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(one(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
        whole = np.asarray(leaf)
        return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])

    return jax.tree.map(one, tree)


def gathered(tree: Any) -> Any:
    """Every leaf as a NumPy array, the same in every process; in a process by itself the tree as it is."""
    if not several():
        return tree
    apart = [leaf for leaf in jax.tree.leaves(tree) if not leaf.is_fully_replicated]
    together = iter(multihost_utils.process_allgather(apart, tiled=True) if apart else [])
    return jax.tree.map(lambda leaf: np.asarray(leaf) if leaf.is_fully_replicated else next(together), tree)


def agreed(*numbers: int) -> list[tuple[int, ...]]:
    """These numbers of every process, the first one's first: all processes must ask at the same place."""
    if not several():
        return [numbers]
    rows = multihost_utils.process_allgather(np.asarray(numbers, np.int32))
    return [tuple(row) for row in np.asarray(rows).tolist()]


def agree_to_go_on(watch: Watch, pressed: bool, size: int = 1) -> int:
    """The first process's ``size``; ``watch`` is told where Ctrl-C was pressed, or a callback ended the run, in any."""
    rows = agreed(size, int(pressed), int(watch.stop_requested))
    if any(row[1] for row in rows):
        watch.interrupt()
    watch.stop_requested = any(row[2] for row in rows)
    return rows[0][0]


def check_same_start(rounds_done: int, folder: Path) -> None:
    """Refuse to go on from checkpoints that only some processes see; none is written before all have read them."""
    found = sorted({done for (done,) in agreed(rounds_done)})
    if len(found) > 1:
        raise checks.InputError(
            f"checkpoint must be a folder that all processes see: in {folder} they found rounds {found}"
        )
