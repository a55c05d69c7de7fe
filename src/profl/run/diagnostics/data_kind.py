"""What kind of data a batch holds, and which family is made for it: counts, yes and no, choices.

whole numbers >= 0    the mean over entries of variance / mean, r, is 1 of Poisson counts, with a standard error of
                      sqrt(2 / (n p)): Poisson, or NegativeBinomial where r is clearly larger
0 and 1 alone         Bernoulli; Categorical where no row has two ones though independent entries would
labels 0, 1, ...      Categorical
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np

from profl.problem.counts import Bernoulli, Categorical, NegativeBinomial, Poisson, dispersion_of
from profl.problem.families import Family
from profl.run.diagnostics.subject import Finding
from profl.typing import Batch

SURE = 4.0  # standard errors beyond which the variance is not the mean
DOUBLES = 10.0  # rows with two ones that independent entries would have, from which on their absence says something
MOST_LABELS = 100  # products of a choice


class Kind(NamedTuple):
    """Data of a kind that a family is made for."""

    family: type[Family]
    short: str  # how the family is made
    words: str  # what the data are


def kind_findings(family: Family, batch: Batch) -> Iterator[Finding]:
    """Whether the family is the one that is made for such data; nothing where no other would be."""
    kind = kind_of(batch)
    if kind is None:
        if isinstance(family, (Poisson, NegativeBinomial, Bernoulli)):
            values = "0 and 1" if isinstance(family, Bernoulli) else "counts, with a variance of their mean or more"
            yield Finding("data", "warn", f"{type(family).__name__} is for {values}, and these data are not: {HINT}")
    elif isinstance(family, kind.family):
        yield Finding("data", "ok", f"{kind.words}, as {type(family).__name__} takes them")
    else:
        yield Finding("data", "warn", f"{kind.words}: {kind.short} fits them, the family is {type(family).__name__}")


HINT = "profl.GaussianMean() and profl.LocationScale() take any numbers"


def kind_of(batch: Batch) -> Kind | None:
    """The kind of a batch that is one array; None for data that no family of counts or choices is made for.

    >>> draws = np.random.default_rng(0)
    >>> [kind_of(z).short for z in (draws.poisson(5.0, (500, 2)), draws.integers(0, 4, 500))]
    ['profl.Poisson()', 'profl.Categorical(products=3)']
    """
    leaves = jax.tree.leaves(batch)
    if len(leaves) != 1 or (isinstance(batch, dict) and "group" in batch):
        return None
    values = np.asarray(leaves[0])
    whole = values.size > 0 and bool(np.all(np.isfinite(values)) and np.all(values >= 0) and np.all(values % 1 == 0))
    if not whole:
        return None
    if values.ndim == 1 and values.dtype.kind in "iu":
        return _choices(int(values.max())) if values.max() <= MOST_LABELS else None
    if values.ndim != 2:
        return None
    return _yes_and_no(values) if values.max() <= 1 else _counts(values.astype(float))


def _choices(products: int) -> Kind:
    short = f"profl.Categorical(products={max(products, 1)})"
    return Kind(Categorical, short, f"choices, 0 to {products}")


def _yes_and_no(values: np.ndarray) -> Kind:
    """One product of several, or entries that are each by themselves."""
    share = values.mean(0)
    none = np.prod(1 - share)
    alone = none * np.sum(share / np.maximum(1 - share, 1e-12))
    if values.sum(1).max() <= 1 and len(values) * (1 - none - alone) > DOUBLES:
        return Kind(
            Categorical, f"profl.Categorical(products={values.shape[1]})", "choices, one product in a row at most"
        )
    return Kind(Bernoulli, "profl.Bernoulli()", "yes and no, 1 and 0 alone")


def _counts(values: np.ndarray) -> Kind | None:
    """Counts by how their variance stands to their mean; None where it is smaller, as of rounded numbers."""
    sold = values[:, values.mean(0) > 0]
    ratio = float(np.mean(sold.var(0, ddof=1) / sold.mean(0)))
    error = np.sqrt(2 / sold.size)
    if ratio < 1 - SURE * error:
        return None
    words = f"counts whose variance is {ratio:.2g} times their mean"
    if ratio <= 1 + SURE * error:
        return Kind(Poisson, "profl.Poisson()", words)
    return Kind(NegativeBinomial, f"profl.NegativeBinomial(dispersion={dispersion_of(values):.2g})", words)
