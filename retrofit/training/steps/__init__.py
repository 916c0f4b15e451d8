"""Steps of a training: accumulated, skipped, counted, or not of the training at all."""
