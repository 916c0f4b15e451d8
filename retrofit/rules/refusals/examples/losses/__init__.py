"""Worked examples: losses and layers that are computed from the batch as a whole."""
