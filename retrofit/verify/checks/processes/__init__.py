"""Checks of the start, the end, the collective calls and the devices of the processes."""
