"""Files that a conversion adds beside the changed ones."""
