"""Notice what goes wrong in a job and say it once: a rank that fails or waits, a figure that is one rank's."""
