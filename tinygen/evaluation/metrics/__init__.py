"""The mathematics of scores, in NumPy alone."""
