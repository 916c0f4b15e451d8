"""Operators, optimizer steps, models, processes and their group, its collectives, and the precision they compute in."""
