"""Training loaders over all ranks, and the batch sizes that follow from them; the identity outside a group."""

from .batch import gather_batch, squeeze_rows
from .draws import batch_of_ranks, draw_together, own_draw, own_part, whole_batches
from .loaders import (
    distribute_loader,
    keep_total_batch,
    micro_batch,
    own_batch_size,
    own_batches,
    samples_per_step,
    set_epoch,
)
from .sharding import DistributedLoader, loader_workers

__all__ = [
    "DistributedLoader",
    "batch_of_ranks",
    "distribute_loader",
    "draw_together",
    "gather_batch",
    "keep_total_batch",
    "loader_workers",
    "micro_batch",
    "own_batch_size",
    "own_batches",
    "own_draw",
    "own_part",
    "samples_per_step",
    "set_epoch",
    "squeeze_rows",
    "whole_batches",
]
