"""Ready-made comparisons built from cases, algorithms and engines."""
