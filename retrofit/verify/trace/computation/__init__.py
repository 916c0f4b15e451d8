"""Operators, optimizer steps, models and collectives, and the precision that they compute in."""
