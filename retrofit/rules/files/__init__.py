"""Files, logs, checkpoints and what a person is asked."""
