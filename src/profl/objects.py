"""Objects by name: ``shops.py:problem`` or ``shops.data:problem``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from profl.checks import InputError


def import_object(spec: str) -> Any:
    """The object that ``FILE.py:NAME`` or ``MODULE:NAME`` names.

    >>> import_object("math:pi")
    3.141592653589793
    >>> import_object("math")
    Traceback (most recent call last):
        ...
    profl.checks.InputError: name an object as FILE.py:NAME or MODULE:NAME, got 'math'
    """
    place, _, name = spec.rpartition(":")
    if not place or not name:
        raise InputError(f"name an object as FILE.py:NAME or MODULE:NAME, got {spec!r}")
    try:
        module = _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except (Exception, SystemExit) as error:  # a script that ends itself
        raise InputError(f"cannot import {place}: {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        raise InputError(f"{place} has no {name!r}")
    return getattr(module, name)


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"no such file: {path}")
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    return module
