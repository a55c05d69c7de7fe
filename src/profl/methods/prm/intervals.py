"""What ``prm`` knows of the optimum, from the server's state, on the host: a quadratic around the best model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profl.methods.intervals import Posterior
from profl.methods.prm.settings import LEAST_CURVATURE
from profl.problem.limits import space_region
from profl.problem.problem import View

if TYPE_CHECKING:
    from profl.methods.prm.server import ServerState


def posterior(problem: View, server: ServerState) -> Posterior:
    """The posterior of the optimum from a server's state of NumPy arrays, with or without an axis of seeds."""
    values, axes = np.linalg.eigh((server.curvature + np.swapaxes(server.curvature, -1, -2)) / 2)
    values = np.abs(values)
    least = LEAST_CURVATURE * values.max(-1)
    values = np.maximum(values, least[..., None] + np.finfo(values.dtype).tiny)
    space, seeds = space_region(problem.project, server.base.shape[-1]), server.risk.shape
    return Posterior(
        incumbent=server.base,
        units=server.units,
        best=(server.best - server.base) / server.units,
        decrease=np.maximum(-server.risk, 0.0),
        gradient=server.gradient,
        curvature=(axes * values[..., None, :]) @ np.swapaxes(axes, -1, -2),
        covariance=server.gradient_covariance,
        fall=server.fall,
        fall_variance=server.start_variance + server.incumbent_variance,
        **{name: np.broadcast_to(part, (*seeds, *part.shape)) for name, part in space._asdict().items()},
    )
