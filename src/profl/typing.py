"""The names of the things that move through profl, for annotations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

Array = jax.Array
Key = jax.Array
"""A JAX random key."""

Counts: TypeAlias = int | Sequence[int] | np.ndarray | jax.Array
"""Whole numbers: one for all clients, or one per client."""

Theta = Any
"""A model: any pytree of arrays."""

Batch = Any
"""Samples: a pytree of arrays that share their first axis. One sample is the same pytree without that axis."""

Client = Any
"""What makes a client itself (sensitivity, base demand, ...): one row of a stacked pytree."""

Loss = Callable[[Theta, Any], Array]
"""``loss(theta, z)`` of ONE sample z: a scalar."""
