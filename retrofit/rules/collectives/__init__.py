"""Calls that every rank must make."""
