"""Drawn faces with labels and captions."""
