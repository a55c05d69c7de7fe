"""Filters: which samples of a batch to keep, judged by their gradients (paper, Algorithm 2, "Robust Gradient").

A filter is any jit-able function ``(gradients (n, d), weights (n,)) -> weights (n,)`` that lowers weights, or sets them
to zero; the client step renormalises what is left and feeds it to f_hat, L1 and L2 alike. What it gets to see, and each
group by itself, is ``profl.parts.trusted_samples``'s matter.

``FILTERS`` is open: whoever adds a name to it can pass that name as ``filter=``.

>>> FILTERS["half"] = lambda gradients, weights: jnp.where(jnp.arange(weights.size) % 2 == 0, weights, 0.0)
>>> check(get("half"))
>>> del FILTERS["half"]

A filter with a memory or with trusted samples is a ``SampleFilter``; what it remembers is part of the client's state.

Here: ``filter`` (the contract), ``paper`` (Algorithm 2 as written), ``robust`` (the default), ``reference_sample``
(vetted samples, as a setting), ``order_statistics`` and ``where_needed`` (what makes them fast).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp  # noqa: F401  (the example)
import numpy as np

from profl import checks
from profl.parts.filters.paper import PaperFilter
from profl.parts.filters.robust import RobustFilter
from profl.problem.validation.functions import call_user_function
from profl.typing import Array

__all__ = ["FILTERS", "Filter", "PaperFilter", "RobustFilter", "check", "get", "keep_all"]

Filter = Callable[[Array, Array], Array]

TRIED_SAMPLES, TRIED_NUMBERS = 16, 3  # made gradients that ``check`` tries a filter on: enough to have a shape


def keep_all(gradients: Array, weights: Array) -> Array:
    """No filter."""
    return weights


FILTERS: dict[str, Filter] = {"none": keep_all, "paper": PaperFilter(), "robust": RobustFilter()}


def get(spec: Any) -> Filter:
    """A filter by name, or a function of one's own as it is."""
    if isinstance(spec, type):
        raise checks.InputError(f"filter must be an object, got a class; try {spec.__name__}()")
    return spec if callable(spec) else FILTERS[checks.one_of("filter", spec, FILTERS)]


def check(function: Filter) -> None:
    """Try a filter on made gradients and refuse one whose weights could not be used."""
    if isinstance(function, (RobustFilter, PaperFilter)) or function is keep_all:
        return  # known to be sound, and slow to compile
    n = TRIED_SAMPLES
    gradients = np.random.default_rng(0).normal(size=(n, TRIED_NUMBERS)).astype(np.float32)
    tried = jax.device_put((gradients, np.full(n, 1 / n, np.float32)))
    kept = np.asarray(call_user_function("filter(gradients, weights)", lambda: function(*tried)), float)
    expected = "a filter must return one weight of 0 or more per sample, not all zero"
    if kept.shape != (n,):
        raise checks.InputError(f"{expected}; for {n} samples it returned shape {kept.shape}")
    if not np.all(np.isfinite(kept)) or np.any(kept < 0) or kept.sum() <= 0:
        raise checks.InputError(f"{expected}; for {n} samples it returned {kept.tolist()}")
