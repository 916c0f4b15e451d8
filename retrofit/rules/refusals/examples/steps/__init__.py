"""Worked examples: what a step of the optimizer does, and when it is made."""
