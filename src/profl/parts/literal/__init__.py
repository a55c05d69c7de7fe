"""The parts of ``profl.literal``: lines of Algorithm 1 and 2 as they are printed, where profl's own parts differ."""

from profl.parts.literal.gradient import ScoreGradient
from profl.parts.literal.jacobian import WindowDifferences
from profl.parts.literal.robust_gradient import RobustGradient
from profl.parts.literal.shared_update import ClusterMeans, SharedUpdate

__all__ = ["ClusterMeans", "RobustGradient", "ScoreGradient", "SharedUpdate", "WindowDifferences"]
