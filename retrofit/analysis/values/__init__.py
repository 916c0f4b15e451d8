"""Values that expressions can have, followed through assignments, calls, classes and containers."""
