"""Numbers of steps and of samples in figures: how many batches an epoch has, and uses of the batch size."""
