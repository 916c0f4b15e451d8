"""Marks at the calls that a training step is made of. Each file watches one kind of call."""
