"""CPU cores, memory, disks, clock, limits and environment variables."""
