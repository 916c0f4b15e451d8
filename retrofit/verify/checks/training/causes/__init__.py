"""Causes of losses, gradients and weights that are not those of one process."""
