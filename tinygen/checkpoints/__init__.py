"""Checkpoints: saving, restoring, checksums, and which one is best."""
