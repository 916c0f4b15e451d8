"""Operators, optimizer steps, models, the process group and its collectives, and the precision that they compute in."""
