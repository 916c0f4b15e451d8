"""An abstract interpreter: follow through a program which values differ between processes, and where they end."""
