"""``python -m tests.faults WHERE SEED``: one schedule again; WHERE is the name of a module beside this one."""

from __future__ import annotations

import sys
import tempfile
from importlib import import_module
from pathlib import Path

if __name__ == "__main__":
    where, seed = sys.argv[1], int(sys.argv[2])
    engine = import_module(f"tests.faults.{where}")
    for fault in engine.schedule(seed):
        print(fault)
    with tempfile.TemporaryDirectory() as folder:
        print(engine.run(seed, Path(folder) / "run"))
