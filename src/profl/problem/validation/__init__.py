"""Validation of a problem: its arguments, its functions, and the samples that its family reads."""
