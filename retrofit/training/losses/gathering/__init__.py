"""Rows of samples that a loss compares, gathered over the ranks: what has to be gathered, and the proof of it."""
