"""The paper's tables and figures, one file each. ``ITEMS`` maps a name to the item, in the paper's order."""

from __future__ import annotations

from profl_papers.item import Found, Item
from profl_papers.profl2024 import (
    fig2a,
    fig2b,
    fig2c,
    fig3a,
    fig3b,
    fig3c,
    fig4a,
    fig4b,
    fig4c,
    fig4d,
    fig5a,
    fig5b,
    fig6a,
    fig6b,
    table1,
)
from profl_papers.trial import Trial

_MODULES = (
    *(table1, fig2a, fig2b, fig2c, fig3a, fig3b, fig3c),
    *(fig4a, fig4b, fig4c, fig4d, fig5a, fig5b, fig6a, fig6b),
)

ITEMS: dict[str, Item] = {module.ITEM.name: module.ITEM for module in _MODULES}

__all__ = ["ITEMS", "Found", "Item", "Trial"]
