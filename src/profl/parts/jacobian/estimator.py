"""What an estimator of df/dsignal is: pure functions over a state of fixed shape."""

from __future__ import annotations

from typing import Any

from profl import trees
from profl.typing import Array


class JacobianEstimator:
    """Base class of all estimators. Subclasses are frozen dataclasses.

    Attributes:
      explores: whether it wants what is deployed to be perturbed.
      natural_units: whether signal, f_hat and variance come in natural units (``profl.parts.units``); J is then
        in natural units as well.
    """

    explores: bool = False
    natural_units: bool = False

    def init(self, signal: Array, f: Array) -> Any:
        """The state before the first deployment; ``signal`` (s,) and ``f`` (p,) give shapes and types."""
        raise NotImplementedError

    def update(self, state: Any, signal: Array, f: Array, variance: Array, at: Array) -> Any:
        """The state after one more deployment.

        ``signal`` is what was deployed, ``f`` what came in with the ``variance`` of its sampling noise, ``at`` the
        signal of the model that the deployment was made around.
        """
        raise NotImplementedError

    def restart(self, state: Any, restarts: Array, signal: Array, f: Array) -> Any:
        """The state, as before the first deployment where ``restarts`` () holds: the units have changed."""
        return trees.where(restarts, self.init(signal, f), state)

    def estimate(self, state: Any) -> Array:
        """J, (p, s)."""
        raise NotImplementedError

    def error(self, state: Any) -> Array:
        """The estimated squared error of every entry of J, (p, s)."""
        raise NotImplementedError

    def hold(self, state: Any) -> Array | int:
        """For how many deployments a perturbation is to be held."""
        return 1

    def figures(self, state: Any) -> dict[str, Array]:
        """Figures about the reaction by name; a run records them."""
        return {}
