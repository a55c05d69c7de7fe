"""What a campaign's method has learned of the reaction: df/dtheta of each client, with errors where it has them.

``prm`` fits a response per client and states how well it knows each slope. Methods that share Jacobians keep each
client's own estimate, without an error of each entry. Others keep what they know in memories of their own: None.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from profl import trees
from profl.campaign.fold import Fold, State
from profl.methods.prm import PRM


class Slopes(NamedTuple):
    """By how much each number f of the data's distribution moves per unit of each number of the model."""

    mean: np.ndarray  # (clients, p, s)
    error: np.ndarray | None  # its standard errors; None where the method states none
    inputs: list[str]  # what each column is called
    outputs: list[str]  # what each row is called


def slopes_of(fold: Fold, state: State, names: Sequence[str], columns: Sequence[str] | None) -> Slopes | None:
    """The slopes of all clients after the last round that was closed; None where the method states none."""
    mean, error = _stated(fold, state)
    if mean is None:
        return None
    _, p, s = mean.shape
    reacts_to_theta = fold.plan.settings.functions.signal is trees.ravel and len(names) == s
    inputs = list(names) if reacts_to_theta else [f"signal[{i}]" for i in range(s)]
    outputs = list(columns) if columns is not None and len(columns) == p else [f"f[{k}]" for k in range(p)]
    return Slopes(mean, error, inputs, outputs)


def _stated(fold: Fold, state: State) -> tuple[np.ndarray | None, np.ndarray | None]:
    """(the slopes, their standard errors), as far as the method has them."""
    history, method = state.live.history, fold.plan.settings.method
    if isinstance(method, PRM):
        own: Any = jax.tree.map(np.asarray, history.carry.states.own)
        unit = own.surrogate.signal_unit.scale[:, None, :]
        size = unit.shape[-1]
        mean = own.surrogate.response.mean[:, :, 1 : 1 + size] / unit
        return mean, np.sqrt(_variance(own)[:, :, :size]) / unit
    final = history.final_outputs_on_host(fold.plan)
    jacobians = final.get("jacobians") if isinstance(final, dict) else None
    return (None, None) if jacobians is None else (np.asarray(jacobians.own), None)


def _variance(own: Any) -> np.ndarray:
    """Of each client's coefficients: its own fit's given what all clients have in common, and that of the common mean
    as far as the fit rests on it."""
    rests_on_prior = np.minimum(own.variance / own.prior.variance, 1.0)
    return np.asarray(own.variance + rests_on_prior**2 * own.common_error)
