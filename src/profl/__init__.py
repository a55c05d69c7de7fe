"""profl: performative federated learning.

Train one model across many clients whose data change because the model is deployed, and find the performative optimum
rather than the stable point that retraining settles at.

>>> import profl
>>> case = profl.cases.pricing(clients=4, goods=2)
>>> run = profl.simulate(case, profl.pofl(window=20), rounds=10, samples=100, seeds=range(2), progress=False)
>>> run.excess.shape
(2, 11)
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from profl import cases, data
from profl.checks import DivergedError, InputError, TooFewReports
from profl.interrupts import Interrupted
from profl.methods import ALGORITHMS, dfo, lazy, pfl, pg, pofl, prm, profl, rgd, rrm, two_stage
from profl.methods.method import Arrival, Method, Outlook
from profl.methods.stopping import Settled
from profl.parts.exploration import Exploration
from profl.parts.filters import PaperFilter, RobustFilter
from profl.parts.privacy import Privacy
from profl.parts.sample_size import AdaptiveSamples
from profl.problem.contamination import contaminate
from profl.problem.families import ClassMeans, Family, GaussianMean, GroupShares, LinearGaussian, LocationScale
from profl.problem.live import LiveProblem
from profl.problem.memory import drifting, slow, staggered
from profl.problem.model_space import Box
from profl.problem.personal import personal
from profl.problem.problem import Problem
from profl.problem.push import Push
from profl.problem.reaction import Reaction, SampledReaction
from profl.problem.rejection import ResampleIfRejected
from profl.results import trackers as tracking
from profl.results.callbacks import Record
from profl.results.comparison import Comparison
from profl.results.files import load
from profl.results.record import Run
from profl.run.compare import compare
from profl.run.compiled.simulate import simulate
from profl.run.config import Schedule
from profl.run.live.batches import Delayed
from profl.run.live.simulated import simulated_clients
from profl.run.live.train import train
from profl.server.attacks import ATTACKS, Attack
from profl.server.clusters import Clusters
from profl.server.shrinkage import Shrinkage

__version__ = "0.1.0"


if not TYPE_CHECKING:  # lest a type checker take every name for a method

    def __getattr__(name: str) -> Callable[..., Method]:
        """A method that was added to ``ALGORITHMS``."""
        if name in ALGORITHMS:
            return ALGORITHMS[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "ALGORITHMS",
    "ATTACKS",
    "AdaptiveSamples",
    "Arrival",
    "Attack",
    "Box",
    "ClassMeans",
    "Clusters",
    "Comparison",
    "Delayed",
    "DivergedError",
    "Exploration",
    "Family",
    "GaussianMean",
    "GroupShares",
    "InputError",
    "Interrupted",
    "LinearGaussian",
    "LiveProblem",
    "LocationScale",
    "Method",
    "Outlook",
    "PaperFilter",
    "Privacy",
    "Problem",
    "Push",
    "Reaction",
    "Record",
    "ResampleIfRejected",
    "RobustFilter",
    "Run",
    "SampledReaction",
    "Schedule",
    "Settled",
    "Shrinkage",
    "TooFewReports",
    "cases",
    "compare",
    "contaminate",
    "data",
    "dfo",
    "drifting",
    "lazy",
    "load",
    "personal",
    "pfl",
    "pg",
    "pofl",
    "prm",
    "profl",
    "rgd",
    "rrm",
    "simulate",
    "simulated_clients",
    "slow",
    "staggered",
    "tracking",
    "train",
    "two_stage",
]
