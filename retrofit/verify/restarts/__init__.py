"""Restarts of a script from its checkpoint: their arguments, and the runs that are made with them."""
