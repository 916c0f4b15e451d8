"""Run a training in one process and in several, and compare what it did."""
