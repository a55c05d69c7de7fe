"""``python -m benchmarks wild``: problems that no method was tuned for."""
