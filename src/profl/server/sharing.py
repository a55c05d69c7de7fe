"""How clients learn from each other's Jacobians: the contract of ``Clusters`` and ``Shrinkage``."""

from __future__ import annotations

from profl.typing import Array, Key


class Sharing:
    """Base class. ``entrywise``: whether it wants the error of every entry of J, not one mean for each client."""

    entrywise: bool = False

    def check(self, clients: int) -> None:
        """Refuse a number of clients that it cannot work with."""

    def share(self, key: Key, jacobians: Array, weights: Array, accepted: Array, errors: Array) -> tuple[Array, Array]:
        """(what each client gets (k, p, s), the cluster of each, (k,) int32, -1 for none)."""
        raise NotImplementedError
