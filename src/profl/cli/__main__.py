"""``python -m profl.cli``."""

from profl.cli import main

main()
