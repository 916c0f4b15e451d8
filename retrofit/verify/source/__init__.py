"""Facts that are read from the source of a script: losses that couple samples, and tests that decide."""
