"""Calling a user's function for the first time: traced, never computed; what goes wrong is said in words.

An exception inside the function becomes an ``InputError`` that names the function and what may help; the exception
itself stays its cause.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax

from profl import checks

LONGEST = 200  # letters of somebody else's message


def traced(name: str, function: Callable[..., Any], **given: Any) -> Any:
    """The shapes that ``function`` returns; ``given`` are its arguments in order, with the names that people know.

    >>> import jax.numpy as jnp
    >>> traced("loss", lambda theta, z: theta["prise"] * z, theta={"price": jnp.ones(1)}, z=jnp.ones(1))
    Traceback (most recent call last):
        ...
    profl.checks.InputError: loss(theta, z) asks for the key 'prise'; theta has 'price'; did you mean 'price'?
    """
    return attempted(name, lambda: jax.eval_shape(function, *given.values()), **given)


def attempted(name: str, run: Callable[[], Any], **given: Any) -> Any:
    """``run()``, with its exceptions in words; ``given`` are the arguments of the function that it calls."""
    called = name if "(" in name or not given else f"{name}({', '.join(given)})"
    try:
        return run()
    except checks.InputError:
        raise
    except KeyError as error:
        raise checks.InputError(f"{called} asks for the key {_missing(error, given)}") from error
    except Exception as error:
        message = next(iter(str(error).splitlines()), "")[:LONGEST]
        raise checks.InputError(f"{called} raised {type(error).__name__}: {message}{_hint(error)}") from error


def _missing(error: KeyError, given: Mapping[str, Any]) -> str:
    key = error.args[0] if error.args else ""
    having = {name: list(value) for name, value in given.items() if isinstance(value, Mapping)}
    found = "; ".join(f"{name} has {', '.join(map(repr, keys))}" for name, keys in having.items())
    elsewhere = [name for name, keys in having.items() if key in keys]
    near = checks.nearest(key, [str(name) for keys in having.values() for name in keys])
    hint = f"; it is in {elsewhere[0]}" if elsewhere else f"; did you mean {near!r}?" if near else ""
    return f"{key!r}; {found or 'none of its arguments is a dict'}{hint}"


def _hint(error: Exception) -> str:
    if isinstance(error, jax.errors.JAXTypeError):
        return (
            " The function is traced and compiled: use jax.numpy in place of numpy, and jnp.where in place of an "
            "`if` on values"
        )
    return ""
