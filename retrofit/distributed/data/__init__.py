"""Training loaders over all ranks, and the batch sizes that follow from them; the identity outside a group."""

from .batch import gather_batch
from .loaders import distribute_loader, micro_batch, own_batch_size, samples_per_step, set_epoch
from .sharding import DistributedLoader, loader_workers

__all__ = [
    "DistributedLoader",
    "distribute_loader",
    "gather_batch",
    "loader_workers",
    "micro_batch",
    "own_batch_size",
    "samples_per_step",
    "set_epoch",
]
