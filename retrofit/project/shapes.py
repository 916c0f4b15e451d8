"""Names of what a tensor tells of its shape, its type and its device: nothing of it depends on its numbers."""

ATTRIBUTES = {"shape", "ndim", "device", "dtype", "layout", "is_cuda", "requires_grad", "itemsize", "nbytes"}
METHODS = {"size", "numel", "nelement", "dim", "ndimension", "stride", "element_size", "get_device"}
