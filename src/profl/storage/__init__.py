"""Files: written whole or not at all, checkpoints, fingerprints of runs."""
