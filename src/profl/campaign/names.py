"""What the numbers of a model and of a sample are called, and models as named tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from profl import checks
from profl.typing import Theta


def names_of(tree: Any, given: Sequence[str] | None = None, what: str = "names", single: str = "theta") -> list[str]:
    """A name for every number of a pytree: ``given``, or where it stands in the tree.

    >>> names_of({"price": np.zeros(2), "margin": 0.0})
    ['margin', 'price[0]', 'price[1]']
    >>> names_of(np.zeros(2)), names_of(np.zeros(2), ["apples", "pears"])
    (['theta[0]', 'theta[1]'], ['apples', 'pears'])
    """
    places = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        place = ".".join(str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path)
        places += [(place or single) + _index(index) for index in np.ndindex(np.shape(leaf))]
    if given is None:
        return places
    if isinstance(given, str) or not all(isinstance(name, str) and name.strip() for name in given):
        raise checks.InputError(f"{what} must be a list of words, got {given!r}")
    if len(given) != len(places) or len(set(given)) < len(given):
        raise checks.InputError(f"{what} must be {len(places)} different words, one for each number, got {list(given)}")
    return list(given)


def named(theta: Theta, names: Sequence[str]) -> dict[str, float]:
    """The numbers of a model by their names."""
    numbers = [np.asarray(leaf).ravel() for leaf in jax.tree.leaves(theta)]
    return dict(zip(names, np.concatenate(numbers).tolist() if numbers else [], strict=True))


def _index(index: tuple[int, ...]) -> str:
    return "".join(f"[{i}]" for i in index)
