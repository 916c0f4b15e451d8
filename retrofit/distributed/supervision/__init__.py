"""Processes that fail, vanish or hang: how the ranks of a job find out, and how the job ends."""
