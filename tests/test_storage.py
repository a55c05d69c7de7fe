"""What is written to files: whole or not at all, and in plain numbers."""

from __future__ import annotations

import json

import jax.numpy as jnp
import numpy as np
import pytest

from profl.storage.atomic import write_json


def test_arrays_and_their_numbers_become_plain(tmp_path):
    path = tmp_path / "found.json"
    write_json(path, {"a": np.float32(0.5), "b": jnp.arange(2), "c": [np.int64(3), True, None]})
    assert json.loads(path.read_text()) == {"a": 0.5, "b": [0, 1], "c": [3, True, None]}


def test_what_cannot_be_written_leaves_the_old_file(tmp_path):
    path = tmp_path / "found.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError, match="object is not JSON serializable"):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]
