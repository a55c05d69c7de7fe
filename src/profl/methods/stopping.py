"""When a run is done: its method's ``Forecast`` compared with the cost of another deployment.

    excess + error <= tolerance          the model is expected to be good enough
    gain * payback <= price + cost       one more deployment would gain less than it costs

``payback`` is over how many later deployments a gain is enjoyed. A forecast with a NaN in it ends nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp

from profl import checks
from profl.methods.method import Forecast
from profl.typing import Array

REASONS = {
    1: "expected excess below the tolerance",
    2: "another deployment is expected to gain less than it costs",
}
"""Why a run ended, by the answer of ``StopWhenSettled.why``."""


@checks.explain_call
@dataclass(frozen=True)
class StopWhenSettled:
    """Ends a run when its method expects too little from going on.

    ``profl.simulate(..., stop=profl.StopWhenSettled(tolerance=0.01))``.

    Args:
      tolerance: end once the expected excess risk and its standard error are together at most this; None: never.
      cost: what a deployment costs besides what is lost by trying another model, in units of the risk.
      payback: over how many later deployments what one more would gain is enjoyed.
      least: deployments that every client makes first.

    >>> stop = StopWhenSettled(tolerance=0.1, least=5)
    >>> forecast = Forecast(excess=0.06, error=0.03, gain=0.01, price=0.0)
    >>> REASONS[int(stop.why(forecast, deployments=5))]
    'expected excess below the tolerance'
    >>> int(stop.why(forecast, deployments=4))  # go on
    0
    """

    tolerance: float | None = None
    cost: float = 0.0
    payback: float = 300
    least: int = 10

    def __post_init__(self) -> None:
        if self.tolerance is not None and checks.real("tolerance", self.tolerance) <= 0:
            raise checks.InputError(
                f"tolerance must be above 0, got {self.tolerance!r}; tolerance=None goes by gain and cost alone"
            )
        if checks.real("cost", self.cost) < 0:
            raise checks.InputError(f"cost must be at least 0, got {self.cost!r}; try cost=0.0, the default")
        if checks.real("payback", self.payback) <= 0:
            raise checks.InputError(
                f"payback must be above 0, got {self.payback!r}; try 300, the default: so many deployments enjoy a gain"
            )
        checks.positive_int("least", self.least)

    def why(self, forecast: Forecast, deployments: Array | int) -> Array:
        """Which of ``REASONS`` there is to end after so many deployments per client; 0 to go on."""
        good = False if self.tolerance is None else forecast.excess + forecast.error <= self.tolerance
        spent = forecast.gain * self.payback <= forecast.price + self.cost
        known = ~jnp.any(jnp.isnan(jnp.stack([jnp.asarray(figure, float) for figure in forecast])))
        why = jnp.where(good, jnp.int32(1), jnp.where(spent, jnp.int32(2), jnp.int32(0)))
        return jnp.where(known & (deployments >= self.least), why, jnp.int32(0))
