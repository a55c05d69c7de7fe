"""Groups: does what the family leaves out of f move, too?

``GroupShares`` holds the shares of groups, ``ClassMeans`` the means within classes; each takes the other for fixed. The
batches of the reaction's pairs are read anew with ``GroupMixture``, which holds both, and the part that the family
leaves out is tested as f itself is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import jax.numpy as jnp
import numpy as np

from profl.problem.families import ClassMeans, Family, GroupShares, is_array
from profl.problem.mixtures import GroupMixture
from profl.run.diagnostics.chi_square import deviations
from profl.run.diagnostics.family import estimate_and_noise
from profl.run.diagnostics.subject import Finding
from profl.typing import Batch

MOVES = 4.0  # standard deviations from which on the part moves, as for f


def group_findings(family: Family, steps: Sequence[Sequence[Batch]]) -> Iterator[Finding]:
    """A warning where the other half moves; ``steps`` has the batches of each client's pairs, two after each other."""
    if isinstance(family, GroupMixture):
        yield Finding("groups", "ok", "shares and means of groups both move, or may, as GroupMixture takes them")
        return
    if not isinstance(family, (GroupShares, ClassMeans)) or any(as_mixture(batch) is None for batch in steps[0]):
        return
    strongest = max(_deviations(family, batches) for batches in steps)
    if strongest > MOVES:
        means, count = isinstance(family, GroupShares), family.group_count
        part = "means of the numbers in the groups" if means else "shares of the classes"
        yield Finding(
            "groups",
            "warn",
            f"the {part} move with the model, too: {strongest:.0f} standard deviations, and {type(family).__name__} "
            f"takes them for fixed; profl.GroupMixture({count}) has both, of batches with x and group",
        )


def as_mixture(batch: Batch) -> Batch | None:
    """A batch of labels and one array of numbers (n, d) as ``GroupMixture`` reads it; None for any other.

    >>> sorted(as_mixture({"x": np.zeros((2, 1)), "y": np.array([0, 1])}))
    ['group', 'x']
    """
    if not isinstance(batch, Mapping):
        return None
    labels = [leaf for leaf in batch.values() if is_array(leaf, 1, whole=True)]
    numbers = [leaf for leaf in batch.values() if is_array(leaf, 2) and not is_array(leaf, 2, whole=True)]
    if len(labels) != 1 or len(numbers) != 1:
        return None
    return {"x": jnp.asarray(numbers[0]), "group": jnp.asarray(labels[0])}


def _deviations(family: Family, batches: Sequence[Batch]) -> float:
    """How strongly the half that the family leaves out moves between the two batches of every pair."""
    mixture, count = GroupMixture(family.group_count), family.group_count
    half = slice(count, None) if isinstance(family, GroupShares) else slice(count)
    read = [estimate_and_noise(mixture, as_mixture(batch)) for batch in batches]
    return deviations(np.stack([f[half] for f, _ in read]), np.concatenate([noise[:, half] for _, noise in read]))
