"""What a filter is, and how a plain function becomes one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from profl.typing import Array, Batch


class SampleFilter:
    """Base class of filters: ``filter(points (n, d), weights (n,)) -> weights (n,)``, lowered or set to zero.

    Attributes:
      of_samples: whether it judges the samples' own numbers; else it judges their gradients.
    """

    of_samples: bool = False

    def __call__(self, points: Array, weights: Array) -> Array:
        raise NotImplementedError

    def start(self, size: int) -> Any:
        """What it remembers of points of ``size`` numbers before it has seen any; () for nothing."""
        return ()

    def step(self, points: Array, weights: Array, memory: Any, reference: Any = None) -> tuple[Array, Any]:
        """The weights, and what to remember; ``reference`` is what it sees of the trusted samples."""
        return self(points, weights), memory

    def reference_batch(self, batch: Batch) -> Batch | None:
        """Trusted samples in the form of this batch; None where there are none."""
        return None


@dataclass(frozen=True)
class FunctionFilter(SampleFilter):
    """A plain function as a filter of gradients."""

    function: Callable[[Array, Array], Array]

    def __call__(self, points: Array, weights: Array) -> Array:
        return self.function(points, weights)


def as_filter(function: Callable[[Array, Array], Array]) -> SampleFilter:
    """The filter itself, or a plain function as one."""
    return function if isinstance(function, SampleFilter) else FunctionFilter(function)
