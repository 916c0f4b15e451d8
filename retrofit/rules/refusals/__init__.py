"""Refusals: their kinds, help with each, and worked examples."""
