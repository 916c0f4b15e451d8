"""Facts about a PyTorch training script, and requests to change it, derived from the analysis of its code."""
