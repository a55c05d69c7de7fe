"""Experiments of the field's papers, one file each. ``ITEMS`` maps a name to the item, by year."""

from __future__ import annotations

from profl.experiments.paper.item import Item
from profl.experiments.papers import (
    brown2022,
    cyffers2024,
    izzo2021,
    izzo2022,
    jin2024,
    khorsandi2025,
    lin2024,
    liu2024,
    mendler2020,
    miller2021,
    mofakhami2023,
    perdomo2020,
    ray2022,
)

_MODULES = (
    perdomo2020,
    mendler2020,
    miller2021,
    izzo2021,
    izzo2022,
    brown2022,
    ray2022,
    mofakhami2023,
    jin2024,
    lin2024,
    cyffers2024,
    liu2024,
    khorsandi2025,
)

ITEMS: dict[str, Item] = {module.ITEM.name: module.ITEM for module in _MODULES}

__all__ = ["ITEMS"]
