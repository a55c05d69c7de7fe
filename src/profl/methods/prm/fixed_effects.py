"""How f depends on the signal in observational data: a regression with fixed effects for clients and for periods.

    f_it = a_i + w_t + B_i x_it + G c_it + noise,      B_i = B + D_i

a_i is a client's level, w_t what moves all clients in a period alike (a holiday, a season), c_it are covariates that
the user names (a promotion). Levels and periods are removed by subtracting means in turns, covariates by least squares
(Frisch, Waugh and Lovell), so that B rests on what varies within a client beside what varies with all others. Its
errors are robust to what is correlated within a client (Liang and Zeger 1986). D_i rests on client i's rows alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from profl.checks import InputError

SWEEPS = 10_000
"""Turns of subtracting means of clients and periods, at most; a table without gaps needs one."""
SETTLED = 1e-9
"""Share of a column's size that a turn changes at the end."""
NO_VARIATION = 1e-6
"""Share of a column's size: what is left of its variation below that is rounding."""
WEAK = 1e-3
"""Share of the mean client's information that every client's slopes are given towards the pooled ones: where a price
did not vary at a client its own slope is the pooled one, with a variance a thousand times as large as others have."""


class PanelFit(NamedTuple):
    """Slopes of f, (p, s), with the levels of clients and periods removed."""

    pooled: np.ndarray  # (p, s): B
    error: np.ndarray  # (p, s): standard errors of B, robust to correlation within a cluster
    clusters: int
    own: np.ndarray  # (clients, p, s): B_i
    own_variance: np.ndarray  # (clients, p, s): of B_i, from the client's own rows
    noise: np.ndarray  # (p,): the variance of what is left


def fit_panel(
    client: np.ndarray,
    period: np.ndarray,
    signal: np.ndarray,
    f: np.ndarray,
    covariates: np.ndarray,
    clients: int,
    period_effects: bool,
    names: list[str],
) -> PanelFit:
    """The fit to N rows: ``client`` (N,) from 0 on, ``period`` (N,) likewise, ``signal`` (N, s), ``f`` (N, p) and
    ``covariates`` (N, c); ``names`` of the signal's entries are for messages.

    >>> rng = np.random.default_rng(0)
    >>> client, week = np.divmod(np.arange(400), 40)
    >>> shock = rng.normal(size=40)[week]  # a good week: more is sold, and prices are higher
    >>> price = 0.1 * (shock + rng.normal(size=400))
    >>> sold = (-2.0 * price + shock + 0.1 * rng.normal(size=400))[:, None]
    >>> fit = fit_panel(client, week, price[:, None], sold, np.zeros((400, 0)), 10, True, ["price"])
    >>> bool(abs(fit.pooled[0, 0] + 2.0) < 2 * fit.error[0, 0] < 0.3)
    True
    """
    groups = [client, period] if period_effects and clients > 1 else [client]
    columns = within(np.hstack([signal, f, covariates]), groups)
    s, p = signal.shape[1], f.shape[1]
    x, y, c = columns[:, :s], columns[:, s : s + p], columns[:, s + p :]
    if c.shape[1]:
        x, y = (part - c @ np.linalg.lstsq(c, part, rcond=None)[0] for part in (x, y))
    check_variation(signal, x, client, names, len(groups) > 1)
    gram = x.T @ x
    inverse = np.linalg.inv(gram)
    pooled = inverse @ x.T @ y  # (s, p)
    rest = y - x @ pooled
    dof = max(len(x) - s - sum(len(np.unique(group)) for group in groups) - c.shape[1] + 1, 1)
    cluster = client if len(np.unique(client)) > 1 and len(groups) > 1 else period
    own, own_variance, noise = own_slopes(client, x, rest, clients, dof)
    error = np.sqrt(robust_variance(x, rest, inverse, cluster))
    return PanelFit(pooled.T, error, len(np.unique(cluster)), pooled.T + own, own_variance, noise)


def within(columns: np.ndarray, groups: list[np.ndarray]) -> np.ndarray:
    """``columns`` (N, k) less the means of all ``groups`` (N,), which are subtracted in turns until nothing changes."""
    columns = columns - columns.mean(0)
    size = np.sqrt(np.mean(columns**2, 0)) + np.finfo(float).tiny
    for _ in range(SWEEPS if len(groups) > 1 else 1):
        before = columns
        for group in groups:
            counts = np.bincount(group)[:, None]
            sums = np.zeros((len(counts), columns.shape[1]))
            np.add.at(sums, group, columns)
            columns = columns - (sums / np.maximum(counts, 1))[group]
        if np.all(np.abs(columns - before).max(0) < SETTLED * size):
            break
    return columns


def check_variation(
    signal: np.ndarray, left: np.ndarray, client: np.ndarray, names: list[str], period_effects: bool
) -> None:
    """Refuse history that says nothing of a number of the model, or of two of them apart."""
    varies = np.sqrt(np.mean(within(signal, [client]) ** 2, 0))
    size = np.sqrt(np.mean(signal**2, 0)) + np.finfo(float).tiny
    remains = np.sqrt(np.mean(left**2, 0))
    for k, name in enumerate(names):
        if varies[k] <= NO_VARIATION * size[k]:
            raise InputError(f"{name} never varies at any client of this history: nothing can be learned of its effect")
        if remains[k] <= NO_VARIATION * varies[k]:
            more = "; period_effects=False takes what varies with the period for the effect" if period_effects else ""
            raise InputError(
                f"{name} varies in this history only together with what is removed (the same at all clients in every "
                f"period, or a covariate): its effect cannot be told from theirs{more}"
            )
    scaled = left / remains
    values, axes = np.linalg.eigh(scaled.T @ scaled / len(left))
    if values[0] <= NO_VARIATION:
        together = [names[k] for k in np.flatnonzero(np.abs(axes[:, 0]) > 0.1)]
        raise InputError(
            f"{' and '.join(together)} vary only together in this history: their effects cannot be told apart"
        )


def robust_variance(x: np.ndarray, rest: np.ndarray, inverse: np.ndarray, cluster: np.ndarray) -> np.ndarray:
    """The variance of pooled slopes, (p, s), robust to correlation of the residuals ``rest`` (N, p) in a cluster."""
    number = np.unique(cluster, return_inverse=True)[1]
    scores = np.zeros((number.max() + 1, rest.shape[1], x.shape[1]))
    np.add.at(scores, number, rest[:, :, None] * x[:, None, :])
    influence = scores @ inverse
    count = len(scores)
    return np.sum(influence**2, 0) * count / max(count - 1, 1)


def own_slopes(
    client: np.ndarray, x: np.ndarray, rest: np.ndarray, clients: int, dof: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(Clients' differences from the pooled slopes (clients, p, s), the variances of these, the noise (p,) that is left
    with slopes of their own), from the residuals ``rest`` (N, p) of the pooled ones."""
    s, p = x.shape[1], rest.shape[1]
    gram, linear = np.zeros((clients, s, s)), np.zeros((clients, p, s))
    for number in range(clients):
        rows = client == number
        gram[number], linear[number] = x[rows].T @ x[rows], rest[rows].T @ x[rows]
    present = max(len(np.unique(client)), 1)
    inverse = np.linalg.inv(gram + WEAK * np.diag(np.diagonal(gram.sum(0)) / present))
    own = np.einsum("irs,ips->ipr", inverse, linear)
    left = rest - np.einsum("nps,ns->np", own[client], x)
    noise = np.sum(left**2, 0) / max(dof - (present - 1) * s, 1) + np.finfo(float).tiny
    return own, noise[:, None] * np.diagonal(inverse, axis1=1, axis2=2)[:, None, :], noise
