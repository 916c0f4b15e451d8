"""Worked examples: which model is trained, and how it is run."""
