"""Loaders, samplers, batch sizes and random streams."""
