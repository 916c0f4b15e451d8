"""Edits of all rules together: their places, and the texts that they give."""
