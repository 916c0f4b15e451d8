"""The samples to which the tensors of a batch, and what is made of them, belong."""
