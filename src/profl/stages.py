"""Named stages inside a step, for errors that say where something went wrong.

A step says ``with stage("gradient") as check: g = check(...)``. Normally that does nothing, and compiled code holds
nothing of it. Under ``compile_checked`` an error names its stage, and the compiled function also returns whether every
array that went through ``check`` was finite.
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
"""(place, whether every number there is finite), in the order of the checks."""

_listener: ContextVar[Flags | None] = ContextVar("listener", default=None)


class StageError(RuntimeError):
    """An error inside a stage of a step."""


@contextmanager
def stage(name: str) -> Iterator[Callable[[Any], Any]]:
    """Yields ``check``, which returns its argument.

    >>> with stage("gradient") as check:
    ...     check(1.0)
    1.0
    """
    flags = _listener.get()
    if flags is None:
        yield lambda values: values
        return

    def check(values: Any) -> Any:
        for path, leaf in jax.tree_util.tree_leaves_with_path(values):
            place = f"stage {name!r}: NaN or Inf in the result{jax.tree_util.keystr(path)}"
            flags.append((place, jnp.all(jnp.isfinite(leaf))))
        return values

    try:
        yield check
    except (StageError, DivergedError):
        raise
    except Exception as error:
        raise StageError(f"stage {name!r}: {type(error).__name__}: {error}") from error


def compile_checked(function: Callable[..., Any], **jit: Any) -> Callable[..., Any]:
    """``function`` compiled with its stages checked: ``call(where, *arguments)`` returns its result.

    Raises ``DivergedError`` at the first stage that gives a number that is not finite, and ``RuntimeError`` where a
    function inside fails; both begin with ``where``. No stage may stand inside a loop or a conditional of JAX.

    >>> def root(x):
    ...     with stage("root") as check:
    ...         return check(jnp.sqrt(x))
    >>> float(compile_checked(root)("client 1", 4.0))
    2.0
    >>> compile_checked(root)("client 1", -1.0)
    Traceback (most recent call last):
        ...
    profl.checks.DivergedError: client 1, stage 'root': NaN or Inf in the result
    """
    places: dict[int, list[str]] = {}

    def with_flags(*arguments: Any) -> tuple[Any, list[Array]]:
        flags: Flags = []
        token = _listener.set(flags)
        try:
            result = function(*arguments)
        finally:
            _listener.reset(token)
        places[len(flags)] = [place for place, _ in flags]
        return result, [flag for _, flag in flags]

    compiled = jax.jit(with_flags, **jit)

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
