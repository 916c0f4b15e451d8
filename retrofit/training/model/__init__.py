"""Models of a training: layers, parameters, wrappers."""
