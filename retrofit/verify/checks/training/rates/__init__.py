"""Learning rates and their schedules against those of one process."""
