"""An answer to one question."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    question: str
    verdict: str  # "ok", "warn" or "fail"
    detail: str
    picture: str = ""  # several lines


class Broken(Exception):
    """Nothing further can be asked; its argument is the finding that says why."""
