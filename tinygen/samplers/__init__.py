"""Samplers: from noise to data, and from a prompt to text."""
