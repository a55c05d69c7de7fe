"""Compiled programs kept on disk, so that the next process loads in a second what takes many to compile.

It is JAX's own persistent cache. JAX finds a program by its code, its shapes, the device and the versions of JAX and
XLA, so a changed program is compiled anew, and the folder may be deleted at any time.
"""

from __future__ import annotations

import os
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from profl.checks import path
from profl.storage.paths import cache_directory, check_folder

LEAST_SECONDS = 0.1  # seconds of compiling: programs that took less are not worth a file


def cache(directory: str | os.PathLike[str] | None = None) -> Path:
    """The folder in which this process keeps compiled programs from now on, and looks for them before it compiles.

    Without ``directory`` it is the one that JAX was already told of (``JAX_COMPILATION_CACHE_DIR``), else the one that
    the command line uses, in the user's cache. It is made when the first program is stored. Only ``profl.cache()`` and
    the command line set this; ``import profl`` changes nothing.

    >>> import os, profl, tempfile
    >>> before = jax.config.values["jax_compilation_cache_dir"]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     profl.cache(folder).samefile(folder)
    True
    >>> _ = profl.cache(before)
    """
    if directory is not None:
        path("directory", directory)
    chosen = directory if directory is not None else jax.config.values["jax_compilation_cache_dir"]
    folder = Path(chosen) if chosen is not None else cache_directory() / "compiled"
    check_folder("directory", folder)
    jax.config.update("jax_compilation_cache_dir", str(folder.absolute()))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_SECONDS)
    compilation_cache.reset_cache()  # JAX looks once, at its first program, whether there is a cache, and where
    return folder
