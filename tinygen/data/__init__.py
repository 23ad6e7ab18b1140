"""Data sets: batches as a function of (seed, step), and codecs that say what their arrays mean."""
