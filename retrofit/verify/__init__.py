"""Runs a training on one process and on several, and compares what it did."""
