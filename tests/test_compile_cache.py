"""``profl.cache()``: what one process compiled the next one loads, and nothing is set unless it is called."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import profl

COUNT = """
import json, sys
import jax, jax.numpy as jnp
import profl
found = []
jax.monitoring.register_event_listener(lambda event, **_: found.append(event.rpartition("/")[2]))
unset = jax.config.jax_compilation_cache_dir
jax.jit(lambda x: x + 1)(jnp.arange(3.0))  # JAX asks for a cache at its first program, and remembers the answer
folder = profl.cache(*sys.argv[1:])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.jit(lambda x: jnp.sort(x) * 2)(jnp.arange(7.0)).block_until_ready()
print(json.dumps([unset, str(folder), found.count("cache_hits")]))
"""


def fresh_process(tmp_path, *arguments, **changes):
    """What a process without settings of JAX's cache prints: the folder before, the folder now, programs loaded."""
    own = {key: value for key, value in os.environ.items() if not key.startswith(("JAX_COMPILATION", "JAX_PERSISTENT"))}
    environment = {**own, "XDG_CACHE_HOME": str(tmp_path / "home"), **changes}
    command = [sys.executable, "-c", COUNT, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_a_second_process_loads_what_the_first_one_compiled(tmp_path):
    folder = tmp_path / "programs"
    assert fresh_process(tmp_path, folder) == [None, str(folder), 0]
    assert list(folder.iterdir())
    unset, used, loaded = fresh_process(tmp_path, folder)
    assert (unset, used) == (None, str(folder))
    assert loaded > 0


def test_by_itself_the_folder_is_the_command_lines_or_the_one_jax_was_told_of(tmp_path):
    assert fresh_process(tmp_path)[1] == str(tmp_path / "home" / "profl" / "compiled")
    told = str(tmp_path / "told")
    assert fresh_process(tmp_path, JAX_COMPILATION_CACHE_DIR=told)[:2] == [told, told]


def test_a_file_in_its_place_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(profl.InputError, match=r"directory: .*file is a file, not a folder"):
        profl.cache(tmp_path / "file")
