"""One client's local step on one batch: filter, estimate f, Jacobian, gradient, update.

What a person may hand to a method is imported from here: ``profl.pofl(explore=profl.parts.Exploration(...))``.
"""

from __future__ import annotations

from profl.parts.exploration import Exploration
from profl.parts.filters import FILTERS, PaperFilter, RobustFilter
from profl.parts.privacy import Privacy
from profl.parts.sample_size import AdaptiveSamples

__all__ = ["FILTERS", "AdaptiveSamples", "Exploration", "PaperFilter", "Privacy", "RobustFilter"]
