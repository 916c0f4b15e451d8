"""Evaluations and the figures that a script shows."""
