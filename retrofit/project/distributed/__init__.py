"""Distribution that a script has already: groups, wrappers, samplers, and which processes run what."""
