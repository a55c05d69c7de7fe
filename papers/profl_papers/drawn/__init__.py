"""Problems drawn from a seed, with their exact answers: for the leaderboard and for ``python -m benchmarks wild``."""
