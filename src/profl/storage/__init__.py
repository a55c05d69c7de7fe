"""What is kept on disk: files written whole or not at all, checkpoints, and words that tell one run from another."""
