"""Differences that rounding explains: what it grows to in float64, and what perturbed runs of a script show."""
