"""Experiments of earlier papers on worlds with a state, one file each. ``ITEMS`` maps a name to the item."""

from __future__ import annotations

from profl.experiments.paper.item import Item
from profl.experiments.papers import (
    brown2022,
    izzo2021,
    izzo2022,
    jin2024,
    mendler2020,
    miller2021,
    perdomo2020,
    ray2022,
)

ITEMS: dict[str, Item] = {
    module.ITEM.name: module.ITEM
    for module in (perdomo2020, mendler2020, miller2021, izzo2021, izzo2022, brown2022, ray2022, jin2024)
}

__all__ = ["ITEMS"]
