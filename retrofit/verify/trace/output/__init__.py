"""Lines, curves and options of the script."""
