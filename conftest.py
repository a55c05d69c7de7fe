"""What all tests share: a place for compiled code, so that no worker compiles what another one has.

Where Flower is not installed, what needs it is not even looked at for docstring examples.
"""

import os
from importlib.util import find_spec
from pathlib import Path

import jax

CACHE = os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent / ".cache" / "jax"))
LEAST_SECONDS = 0.2  # of compilation that is worth a file

jax.config.update("jax_compilation_cache_dir", CACHE)
jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_SECONDS)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

collect_ignore_glob = (
    [] if find_spec("flwr") else ["src/profl/engines/flower/*", "tests/federation.py", "tests/flower_run.py"]
)
