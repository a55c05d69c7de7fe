"""Where Flower is not installed, what needs it is not even looked at for docstring examples."""

from importlib.util import find_spec

collect_ignore_glob = (
    [] if find_spec("flwr") else ["src/profl/engines/flower/*", "tests/federation.py", "tests/flower_run.py"]
)
