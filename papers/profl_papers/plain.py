"""Results as plain data: the one place where what was computed becomes what JSON can hold."""

from __future__ import annotations

import math
from typing import Any


def plain(value: Any) -> Any:
    """Only dicts, lists, text, Python's own numbers, booleans and None; what is not finite becomes None.

    >>> import numpy as np
    >>> plain({"a": (1, float("inf")), "b": np.float32(0.5), "c": np.arange(2)})
    {'a': [1, None], 'b': 0.5, 'c': [0, 1]}
    """
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if hasattr(value, "tolist"):  # arrays and scalars of NumPy and JAX
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
