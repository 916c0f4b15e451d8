"""Predict what a training would gain from several GPUs: time, memory and the strategy to start with."""
