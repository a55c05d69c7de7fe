"""The engine for clients that deploy for real: objects with ``deploy(theta, samples) -> batch``."""
