"""profl: performative federated learning.

Train one model across many clients whose data change because the model is deployed, and find the performative optimum
rather than the stable point that retraining settles at.

The names here run a method on a problem. What a method is made of is in ``profl.parts``, what a server does in
``profl.server``, how people and clients behave in ``profl.worlds``, what watches a run in ``profl.callbacks``.

>>> import profl
>>> case = profl.cases.pricing(clients=4, goods=2)
>>> run = profl.simulate(case, profl.pofl(), rounds=10, samples=100, seeds=range(2), progress=False)
>>> run.excess.shape
(2, 11)
"""

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from profl import callbacks, cases, data, methods, parts, server, worlds
from profl.campaign import Campaign
from profl.campaign.train import train
from profl.checks import DivergedError, InputError, TooFewReports
from profl.interrupts import Interrupted
from profl.methods import StopWhenSettled, chain, dfo, literal, pfl, pg, pofl, prm, profl, rgd, rrm, two_stage
from profl.problem.counts import Bernoulli, Categorical, NegativeBinomial, Poisson
from profl.problem.families import ClassMeans, Family, GaussianMean, GroupShares, LinearGaussian, LocationScale
from profl.problem.limits import LinearLimits, MaxChange
from profl.problem.live import LiveProblem
from profl.problem.mixtures import GroupMixture
from profl.problem.model_space import Box
from profl.problem.outcomes import OutcomeLimit
from profl.problem.problem import Problem
from profl.results.files import load
from profl.results.record import Run
from profl.run.compare import compare
from profl.run.compiled.simulate import simulate
from profl.run.config import RunConfig
from profl.storage.compile_cache import cache

__version__ = "0.1.0"

OLD_NAMES = {
    "ALGORITHMS": "profl.methods.ALGORITHMS",
    "ATTACKS": "profl.server.ATTACKS",
    "AdaptiveSamples": "profl.parts.AdaptiveSamples",
    "Arrival": "profl.methods.Arrival",
    "Attack": "profl.server.Attack",
    "Clusters": "profl.server.Clusters",
    "Comparison": "profl.results.Comparison",
    "Delayed": "profl.worlds.Delayed",
    "Exploration": "profl.parts.Exploration",
    "Method": "profl.methods.Method",
    "Outlook": "profl.methods.Forecast",
    "PaperFilter": "profl.parts.PaperFilter",
    "Privacy": "profl.parts.Privacy",
    "Reaction": "profl.worlds.Reaction",
    "Record": "profl.callbacks.Record",
    "ResampleIfRejected": "profl.worlds.ResampleIfRejected",
    "RobustFilter": "profl.parts.RobustFilter",
    "SampledReaction": "profl.worlds.SampledReaction",
    "Schedule": "profl.RunConfig",
    "Settled": "profl.StopWhenSettled",
    "Shrinkage": "profl.server.Shrinkage",
    "contaminate": "profl.worlds.contaminate",
    "dfo_lambda": "profl_papers.dfo_lambda.ForgettingDFO",
    "drifting": "profl.worlds.drifting",
    "lazy": "profl_papers.lazy.lazy",
    "personal": "profl.worlds.personal",
    "simulated_clients": "profl.worlds.simulated_clients",
    "slow": "profl.worlds.slow",
    "staggered": "profl.worlds.staggered",
    "tracking": "profl.callbacks",
}
"""Public names of 0.1 -> where the thing is now; the old ones warn, and are gone in 0.3."""

if not TYPE_CHECKING:  # a type checker would take every name for one that exists

    def __getattr__(name: str) -> Any:
        """An old public name, with a warning; or a method that was added to ``profl.methods.ALGORITHMS``."""
        if name in OLD_NAMES:
            place, _, new = OLD_NAMES[name].rpartition(".")
            text = f"profl.{name} is {OLD_NAMES[name]} now; the old name is gone in 0.3"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
            return getattr(import_module(place), new)
        if name in methods.ALGORITHMS:
            return methods.ALGORITHMS[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """What ``profl.<tab>`` shows: public names only."""
    return sorted([*__all__, "__version__"])


__all__ = [
    "Bernoulli",
    "Box",
    "Campaign",
    "Categorical",
    "ClassMeans",
    "DivergedError",
    "Family",
    "GaussianMean",
    "GroupMixture",
    "GroupShares",
    "InputError",
    "Interrupted",
    "LinearGaussian",
    "LinearLimits",
    "LiveProblem",
    "LocationScale",
    "MaxChange",
    "NegativeBinomial",
    "OutcomeLimit",
    "Poisson",
    "Problem",
    "Run",
    "RunConfig",
    "StopWhenSettled",
    "TooFewReports",
    "cache",
    "callbacks",
    "cases",
    "chain",
    "compare",
    "data",
    "dfo",
    "literal",
    "load",
    "methods",
    "parts",
    "pfl",
    "pg",
    "pofl",
    "prm",
    "profl",
    "rgd",
    "rrm",
    "server",
    "simulate",
    "train",
    "two_stage",
    "worlds",
]
