"""Named stages inside a step, for whoever wants to know where something went wrong.

A step says ``with stage("gradient") as seen: g = seen(...)``. Normally that does nothing, and compiled code holds
nothing of it. Under ``watched`` an error inside names its stage, and what ``seen`` was given is checked: the compiled
function then also returns, for every array, whether it was finite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp

from profl.checks import DivergedError
from profl.typing import Array

Flags = list[tuple[str, Array]]
"""(place, whether every number there is finite), in the order in which they were seen."""

_listener: ContextVar[Flags | None] = ContextVar("listener", default=None)


class StageError(RuntimeError):
    """An error inside a stage of a step."""


@contextmanager
def stage(name: str) -> Iterator[Callable[[Any], Any]]:
    """Yields ``seen``, which hands its argument on.

    >>> with stage("gradient") as seen:
    ...     seen(1.0)
    1.0
    """
    flags = _listener.get()
    if flags is None:
        yield lambda values: values
        return

    def seen(values: Any) -> Any:
        for path, leaf in jax.tree_util.tree_leaves_with_path(values):
            place = f"stage {name!r}: NaN or Inf in the result{jax.tree_util.keystr(path)}"
            flags.append((place, jnp.all(jnp.isfinite(leaf))))
        return values

    try:
        yield seen
    except (StageError, DivergedError):
        raise
    except Exception as error:
        raise StageError(f"stage {name!r}: {type(error).__name__}: {error}") from error


def watched(function: Callable[..., Any], **jit: Any) -> Callable[..., Any]:
    """``function`` compiled, its stages watched: ``call(where, *arguments)`` gives its result.

    Raises ``DivergedError`` at the first stage that gives a number that is not finite, and ``RuntimeError`` where a
    function inside fails; both begin with ``where``. No stage may stand inside a loop or a conditional of JAX.

    >>> def root(x):
    ...     with stage("root") as seen:
    ...         return seen(jnp.sqrt(x))
    >>> float(watched(root)("client 1", 4.0))
    2.0
    >>> watched(root)("client 1", -1.0)
    Traceback (most recent call last):
        ...
    profl.checks.DivergedError: client 1, stage 'root': NaN or Inf in the result
    """
    places: dict[int, list[str]] = {}

    def listened(*arguments: Any) -> tuple[Any, list[Array]]:
        flags: Flags = []
        token = _listener.set(flags)
        try:
            result = function(*arguments)
        finally:
            _listener.reset(token)
        places[len(flags)] = [place for place, _ in flags]
        return result, [flag for _, flag in flags]

    compiled = jax.jit(listened, **jit)

    def call(where: str, *arguments: Any) -> Any:
        try:
            result, flags = compiled(*arguments)
        except StageError as error:
            raise RuntimeError(f"{where}, {error}") from error.__cause__
        for index, finite in enumerate(flags):
            if not finite:
                raise DivergedError(f"{where}, {places[len(flags)][index]}")
        return result

    return call
