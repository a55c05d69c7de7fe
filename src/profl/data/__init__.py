"""Real data sets: found on this machine or fetched, checked by sha256, and made ready for a federation.

>>> sorted(DATASETS)
['adult', 'credit']
"""

from __future__ import annotations

from profl.data.dataset import ChecksumError, MissingDataError, Table
from profl.data.fetch import get
from profl.data.registry import DATASETS, find, load

__all__ = ["DATASETS", "ChecksumError", "MissingDataError", "Table", "find", "get", "load"]
