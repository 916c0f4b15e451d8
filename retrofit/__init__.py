"""Take a single-GPU PyTorch training project to many GPUs and prove that it is still the same training."""

__version__ = "0.1.0"
