"""Engines run an algorithm on a problem. They share every pure function and the random keys, so they agree."""
