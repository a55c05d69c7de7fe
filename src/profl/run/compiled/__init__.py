"""The fast engine: every client of every seed at once, compiled."""
