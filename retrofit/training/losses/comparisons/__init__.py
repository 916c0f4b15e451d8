"""Comparisons of the samples of a batch with each other, and the operations that make them."""
