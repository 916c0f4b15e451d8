"""The model and its wrapper."""
