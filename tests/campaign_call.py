"""One call of a campaign in a process of its own: ``python -m tests.campaign_call ask|tell URL METHOD STORES``."""

from __future__ import annotations

import sys

import profl
from profl.campaign import Campaign

METHODS, SAMPLES = {"prm": profl.prm(), "quick": profl.pofl(jacobian="least_squares")}, 60


def stores(count: int) -> tuple[profl.Problem, list[str]]:
    """(the case, the names of its stores)."""
    return profl.cases.orange_juice(count), [f"store {number}" for number in range(count)]


def call(word: str, url: str, method: str, count: int) -> None:
    case, names = stores(count)
    with Campaign(url, case, METHODS[method], names, samples=SAMPLES) as campaign:
        asked = campaign.ask()
        if word == "tell":
            clients = profl.worlds.simulated_clients(case, METHODS[method], samples=SAMPLES)
            for one in asked:
                campaign.tell(one.id, clients[names.index(one.client)].deploy(one.theta, one.samples, one.round - 1))


if __name__ == "__main__":
    profl.cache()
    call(*sys.argv[1:4], int(sys.argv[4]))
