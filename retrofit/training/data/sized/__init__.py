"""Tensors that a training makes for its batch size, before its loops: labels, rows of a layer, buffers."""
