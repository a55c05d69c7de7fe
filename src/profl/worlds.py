"""How people and clients behave: reactions, memory and drift, junk, personal parts, clients that simulate people.

>>> import profl
>>> case = profl.worlds.slow(profl.cases.housing(clients=2), rate=0.5)
>>> junk = profl.worlds.contaminate(case, 0.1)
>>> len(profl.worlds.simulated_clients(junk, profl.pfl(), samples=20))
2
"""

from __future__ import annotations

from profl.problem.contamination import contaminate
from profl.problem.memory import drifting, slow, staggered
from profl.problem.personal import personal
from profl.problem.reaction import Reaction, SampledReaction
from profl.problem.rejection import ResampleIfRejected
from profl.run.live.batches import Delayed
from profl.run.live.simulated import simulated_clients

__all__ = [
    "Delayed",
    "Reaction",
    "ResampleIfRejected",
    "SampledReaction",
    "contaminate",
    "drifting",
    "personal",
    "simulated_clients",
    "slow",
    "staggered",
]
