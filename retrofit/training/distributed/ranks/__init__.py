"""Values and tests by which processes differ: the rank, what is computed from it, who runs what."""
