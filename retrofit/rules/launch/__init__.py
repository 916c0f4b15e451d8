"""The start of the processes: process group, devices, flags, ports."""
