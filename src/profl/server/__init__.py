"""The server: who takes part in a round, how their models become one, and what hostile clients send to it.

Rules of aggregation are listed in ``RULES`` and defined in ``profl.server.rules``, attacks in ``ATTACKS`` and
``profl.server.attacks``. ``Clusters`` and ``Shrinkage`` say how clients share what they have estimated.
"""

from __future__ import annotations

from profl import checks
from profl.server import attacks, entries, rules
from profl.server.attacks import ATTACKS, Attack
from profl.server.clusters import Clusters
from profl.server.rules import RULES
from profl.server.sharing import Sharing
from profl.server.shrinkage import Shrinkage

__all__ = ["ATTACKS", "RULES", "Attack", "Clusters", "Sharing", "Shrinkage", "attacks", "entries", "rules"]

for _kind in {type(one) for one in (*ATTACKS.values(), *RULES.values())} | {rules.NearestNeighbourMixing, Clusters}:
    checks.explain_call(_kind)
