"""Checks of the samples: the split, each rank's shard, batches, evaluation."""
