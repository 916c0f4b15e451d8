"""GPUs, their driver, and what PyTorch can do with them."""
