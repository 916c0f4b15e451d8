"""Worked examples: where the samples come from, and which rank has which of them."""
