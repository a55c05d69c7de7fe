"""Where Flower is not installed, what needs it is not even looked at for docstring examples."""

from importlib.util import find_spec

_NEEDS_FLOWER = ["src/profl/engines/flower/*", "src/profl/deploy/*", "tests/federation.py", "tests/flower_run.py"]
collect_ignore_glob = [] if find_spec("flwr") else _NEEDS_FLOWER
