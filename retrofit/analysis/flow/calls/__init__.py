"""Calls: which functions call which, what they are given, and from where."""
