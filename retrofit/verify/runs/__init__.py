"""The runs that a verdict needs: what was asked for, how each is launched, and in which order they are made."""
