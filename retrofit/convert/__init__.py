"""Rewrite a single-GPU project for many GPUs: edits by the rules, the runtime and the scripts next to it."""
