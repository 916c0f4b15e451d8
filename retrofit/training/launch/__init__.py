"""The start of a training: its script, its command line, its environment, its devices."""
