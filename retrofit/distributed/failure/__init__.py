"""The end of a job in which a rank fails, vanishes or waits in vain: noticed, explained, reported once."""
