"""The training on one process, measured: its steps, when its gradients are ready, and what it keeps in memory."""
