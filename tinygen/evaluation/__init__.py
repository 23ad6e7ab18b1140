"""Scores of samples, such as FID, each with the protocol it was measured by."""
