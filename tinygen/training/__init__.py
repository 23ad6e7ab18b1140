"""A training run: set-up, loop, batches, resuming, and what happens when an update is not finite."""
