"""``python -m profl``."""

from profl.cli import main

main()
