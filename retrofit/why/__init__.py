"""Explain where the time of a training on several processes goes, and what each remedy would gain."""
