"""Checks of checkpoints and of resuming from one."""
