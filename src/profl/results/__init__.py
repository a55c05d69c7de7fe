"""What a run leaves behind: the record, its figures, tables and plots."""

from __future__ import annotations

from profl.results.comparison import Comparison
from profl.results.record import Run

__all__ = ["Comparison", "Run"]
