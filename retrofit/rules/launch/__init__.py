"""How the processes start: process group, devices, flags, ports."""
