"""Networks that turn images into features, and features kept on disk."""
