"""Training objectives, each with its loss and its sampling."""
