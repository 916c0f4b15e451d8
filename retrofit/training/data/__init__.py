"""Samples and batches of a training: loaders, samplers, orders, random draws, sizes."""
