"""The batches of another run, for one process to train on."""
