"""``profl leaderboard``: every method on problems that nobody has seen, drawn from a seed when the command runs."""
