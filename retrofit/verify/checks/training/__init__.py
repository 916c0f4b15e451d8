"""Checks of the training: losses, gradients, weights, learning rates, BatchNorm."""
