"""Other ways to the optimum in thirty deployments, each at its best, beside ``prm``."""
