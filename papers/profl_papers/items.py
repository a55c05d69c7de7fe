"""Every item by its name: those of the ProFL paper in its order, then those of the field's papers by year.

Between them stand the ProFL paper's items as printed, which run only where they are asked for.
"""

from __future__ import annotations

from profl_papers import (
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
    profl2024,
    ray2022,
)
from profl_papers.item import Item
from profl_papers.profl2024.printed import PRINTED

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

FIELD: dict[str, Item] = {module.ITEM.name: module.ITEM for module in _MODULES}
ITEMS: dict[str, Item] = {**profl2024.ITEMS, **PRINTED, **FIELD}
