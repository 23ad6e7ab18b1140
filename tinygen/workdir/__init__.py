"""A run's workdir: files, metrics, logs and the lock."""
