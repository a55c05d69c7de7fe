"""One table or figure of the paper as data: its settings beside the paper's row, how to run it, what it must show.

An item's ``run`` gets a ``Trial``, which makes case, methods and runs from the settings: what a result states as its
settings is what was run. A result is plain data, ready for JSON; its form is in ``profl_papers.reproduce``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from profl.data.registry import find
from profl_papers.claims import Claim
from profl_papers.trial import Trial

QUICK_ROUNDS = 10
"""The fewest in which every part of a run happens, and the last 10 % of the rounds is still one of them."""


class Found(NamedTuple):
    """What an item found: rows of its table, its claims, and its figure as panels."""

    rows: list[dict[str, Any]]
    claims: list[Claim]
    panels: list[dict[str, Any]]


@dataclass(frozen=True)
class Item:
    """A table or figure.

    Args:
      name: as on the command line, "fig2a".
      title: what it shows, in one line.
      paper: the row of the paper's parameter table.
      settings: what is run here, all of it and nothing else; ``profl_papers.trial`` has the names.
      why: where ``settings`` differ from the paper's row, why.
      run: the runs, rows, claims and panels.
      data: the real data sets it needs.
      work: the paper it is from, as on the command line; ``citation``: who wrote that.
      short: settings of the quick form that are not the full one's; the rounds are cut by themselves.
      finding: what came out, and why it is another than what the paper shows, where it is.
      changed: what was changed after results had been seen, and why; nothing where all was fixed before.
      on_request: whether "all" leaves it out.
    """

    name: str
    title: str
    paper: dict[str, Any]
    settings: dict[str, Any]
    why: str
    run: Callable[[Trial], Found]
    data: tuple[str, ...] = ()
    work: str = "profl2024"
    citation: str = "Zheng, Xie, Tan, Yener, Zhang: ProFL, performative robust optimal federated learning (2024)"
    short: dict[str, Any] = field(default_factory=dict)
    finding: str = ""
    changed: str = ""
    on_request: bool = False

    def trial(self, seeds: Iterable[int], quick: bool = False) -> Trial:
        """What to run; ``quick`` cuts the rounds, which shows the form of the result and proves nothing."""
        settings = dict(self.settings)
        if quick:
            settings["rounds"] = min(settings["rounds"], QUICK_ROUNDS)
            settings |= self.short
        return Trial(settings, tuple(seeds))

    def check_data(self) -> None:
        """Refuse, with the command that gets it, where a data set the item needs is missing or damaged."""
        for name in self.data:
            find(name)
