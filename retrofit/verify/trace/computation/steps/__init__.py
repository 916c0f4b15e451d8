"""Losses, gradients and weights of every step, which an optimizer makes or the script itself."""
