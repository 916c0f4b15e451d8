"""A stand-in for Hydra: the one function of it that a worked example calls."""
