"""Several runs on one problem, side by side: what ``profl.compare`` returns."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from profl import checks, html
from profl.results.record import Run
from profl.results.tables import Text, align, comparison

if TYPE_CHECKING:
    import pandas


class Comparison(list[Run]):
    """A list of runs that shows itself as a table."""

    def summary(self) -> str:
        """One row per method: mean over seeds."""
        self._check_runs()
        return Text("\n".join([self._title(), "", align(comparison(self)), *self._failures()]))

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """All runs in one picture, as ``Run.plot``."""
        from profl.results.plots import plot_runs

        self._check_runs()
        return plot_runs({self[0].case: self}, path)

    def to_pandas(self) -> pandas.DataFrame:
        """One row per method, seed and record."""
        import pandas

        self._check_runs()
        return pandas.concat([run.to_pandas() for run in self], ignore_index=True)

    def _check_runs(self) -> None:
        if not self:
            raise checks.InputError("a comparison must hold at least one run, got none; try profl.compare")

    def _title(self) -> str:
        seeds = len(self[0].seeds)
        known = f": {answers}" if (answers := self[0].answers()) else ""
        return f"{self[0].case}{known}; mean over {seeds} seed{'s' * (seeds > 1)}"

    def _failures(self) -> list[str]:
        return [f"{run.algorithm}: {line}" for run in self for line in run.failures()]

    def __repr__(self) -> str:
        return self.summary() if self else "no runs"

    def _repr_html_(self) -> str:
        if not self:
            return "no runs"
        notes = "\n".join(self._failures())
        return html.table(comparison(self), self._title()) + (html.text(notes) if notes else "")
