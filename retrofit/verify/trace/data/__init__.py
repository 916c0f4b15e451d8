"""Samples that every rank draws, and their replay in one process."""
