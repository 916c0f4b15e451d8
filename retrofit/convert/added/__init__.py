"""Files that a conversion adds in addition to the changed ones."""
