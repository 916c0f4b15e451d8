"""Checks of metrics, curves and files."""
