"""Batches that are cut from data one after another: of samples, or of sequences that are laid side by side."""
