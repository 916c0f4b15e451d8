"""Losses, learning rates and schedules."""
