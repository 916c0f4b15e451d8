"""Steps that a training counts: its end, schedules of the rate and of losses, numbers that each step changes."""
