"""A run's folder on disk."""
