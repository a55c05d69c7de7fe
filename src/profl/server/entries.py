"""What a client sends: a report of named entries, each of which says what it is.

    model      a model, in the space of theta; judged by the gate, clipped around the model that was sent
    gradient   a gradient or a control variate, shaped as theta or raveled
    jacobian   estimates of df/dtheta or of other coefficients of the reaction, and their errors
    statistic  any other real numbers
    count      whole numbers that the server may know itself: steps, samples

The gate, privacy, attacks and the byte counter look at the kind, never at a name. The kind is part of the structure of
the pytree, not of its data: the server takes it from the method, never from what a client sends.

>>> report = {"theta": model(jnp.ones(2)), "steps": count(jnp.array(5))}
>>> report["theta"].kind, values(report)["steps"].item()
('model', 5)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp  # noqa: F401  (the example above)

from profl import checks

KINDS = ("model", "gradient", "jacobian", "statistic", "count")


@partial(jax.tree_util.register_dataclass, data_fields=["value"], meta_fields=["kind", "is_error"])
@dataclass(frozen=True)
class Entry:
    """One entry of a report: a pytree of arrays and its kind.

    ``is_error``: whether it states how uncertain estimates of that kind are. A client may withhold that; a negative
    number says so.
    """

    value: Any
    kind: str
    is_error: bool = False

    def replace(self, value: Any) -> Entry:
        """An entry of the same kind with another value."""
        return Entry(value, self.kind, self.is_error)


Report = dict[str, Entry]
"""What a client sends, entries by name; "theta" is its model."""
Values = dict[str, Any]
"""The same without kinds, as ``Method.combine`` and ``Method.final`` get it."""


def model(value: Any) -> Entry:
    """A model, shaped as theta."""
    return Entry(value, "model")


def gradient(value: Any) -> Entry:
    """A gradient or a control variate."""
    return Entry(value, "gradient")


def jacobian(value: Any) -> Entry:
    """Estimates of df/dtheta or of other coefficients of the reaction."""
    return Entry(value, "jacobian")


def jacobian_error(value: Any) -> Entry:
    """Squared errors of an entry of kind jacobian, or the mean of them."""
    return Entry(value, "jacobian", is_error=True)


def statistic(value: Any) -> Entry:
    """Any other real numbers."""
    return Entry(value, "statistic")


def count(value: Any) -> Entry:
    """Whole numbers that the server may know itself."""
    return Entry(value, "count")


def values(report: Mapping[str, Entry]) -> Values:
    """The report without its kinds: name -> value, which is what ``Method.combine`` gets."""
    return {name: entry.value for name, entry in report.items()}


def check(report: Any, method: str) -> None:
    """Refuse a report whose entries do not state a kind, or that has no model called "theta"."""
    if not isinstance(report, dict) or "theta" not in report:
        raise checks.InputError(f'{method}: report must return a dict with an entry "theta", got {report!r}')
    for name, entry in report.items():
        if not isinstance(entry, Entry) or entry.kind not in KINDS:
            got = f"the kind {entry.kind!r}" if isinstance(entry, Entry) else type(entry).__name__
            raise checks.InputError(
                f"{method}: entry {name!r} of its report must be one of profl.server.entries: "
                f"{', '.join(f'{kind}(...)' for kind in KINDS)}; got {got}"
            )
    if (kind := report["theta"].kind) != "model":
        raise checks.InputError(f'{method}: entry "theta" of its report must be model(...), got {kind}(...)')
