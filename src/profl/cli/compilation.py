"""How the command line has code compiled: kept for the next time, and lightly where runs are short."""

from __future__ import annotations

import contextlib
import os
from importlib.metadata import version

from profl.checks import InputError
from profl.storage.compile_cache import cache

LIGHT_FLAGS = {"0.10.": "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0"}
"""jaxlib -> flags that it knows: one that it does not know ends the process."""


def keep_compiled() -> None:
    """Store compiled code in the user's cache, so that a second start need not compile; JAX's own settings win."""
    if "JAX_COMPILATION_CACHE_DIR" in os.environ or "JAX_ENABLE_COMPILATION_CACHE" in os.environ:
        return
    with contextlib.suppress(InputError):  # a home that cannot be written to: nothing is kept
        cache()


def compile_lightly() -> None:
    """Switch off LLVM's optimisations and XLA's newer fusion emitters; call it before anything is computed.

    Short runs take most of their time to compile, and that takes half as long so. The user's own flags win.
    """
    flags = next((flags for prefix, flags in LIGHT_FLAGS.items() if version("jaxlib").startswith(prefix)), None)
    if flags is not None and "XLA_FLAGS" not in os.environ:
        os.environ["XLA_FLAGS"] = flags
