"""Figures of a training and of its evaluation: what depends on one rank's samples, and where it is shown."""
