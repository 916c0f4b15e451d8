"""Criteria: those of libraries, those derived from criteria of torch, the labels that they leave out."""
