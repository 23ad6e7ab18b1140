"""Scores of samples: pictures, features of a frozen network, distances to a reference, and the protocol that makes two comparable."""
