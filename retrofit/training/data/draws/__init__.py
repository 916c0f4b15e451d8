"""Batches that a training draws itself, without a loader: at random, or as slices of its data."""
