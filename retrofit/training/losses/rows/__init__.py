"""Rows of a batch that a loss takes by their place, as one sequence, or with a length of their own."""
