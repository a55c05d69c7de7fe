"""Pricing with three groups of clients that react alike: the case in which sharing Jacobians can be seen to help."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from profl.cases import pricing
from profl.problem.problem import Problem

SENSITIVITIES = (0.75, 1.5, 2.25)
"""Of the three groups: the case's own mean of 1.5, half of that less, and half of that more."""


def three_groups(clients: int = 100) -> Problem:
    """Pricing with a third of the clients at each sensitivity; those left over are in the middle group.

    >>> three_groups(5).clients["gamma"].tolist()
    [0.75, 1.5, 1.5, 1.5, 2.25]
    """
    third = clients // 3
    gamma = np.repeat(SENSITIVITIES, [third, clients - 2 * third, third])
    case = pricing(clients=clients, heterogeneity=0)
    return replace(case, name="pricing, three groups", clients={**case.clients, "gamma": gamma})
