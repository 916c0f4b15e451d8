"""The runtime of a retrofitted script: torch and the standard library only.

Without a launcher every function is the identity, so one script serves one process and many. What most scripts need is
here; the rest is in the modules that are imported here too: `rd.loss.batch_sum`, `rd.checkpoint.save_position`.
"""

from . import checkpoint as checkpoint
from . import collectives as collectives
from . import data as data
from . import evaluation as evaluation
from . import job as job
from . import learning_rate as learning_rate
from . import loss as loss
from . import output as output
from . import search as search
from . import strategies as strategies
from .checkpoint import load_checkpoint, save_checkpoint
from .collectives import reduce_dict
from .data import distribute_loader, set_epoch
from .data import random_state as random_state
from .data.batch import reduce_loss, reduce_total
from .data.random_state import share_random_state
from .ddp import model as model
from .ddp.model import distribute_model
from .ddp.unwrap import unwrap_model
from .ddp.wrapper import DDPWrapper
from .evaluation import share_batches, sum_over_ranks
from .learning_rate import scaled_lr
from .output import path_on_main, print_main
from .process import devices as devices
from .process import environment as environment
from .process import measure as measure
from .process import options as options
from .process import process_group as process_group
from .process.options import add_runtime_flags
from .process.process_group import (
    barrier,
    cleanup_distributed,
    get_device,
    get_rank,
    get_world_size,
    is_main_process,
    setup_distributed,
)
from .strategies.converted import sharded_model as _sharded_model  # noqa: F401
from .strategies.fsdp import FSDPWrapper

__all__ = [
    "DDPWrapper",
    "FSDPWrapper",
    "add_runtime_flags",
    "barrier",
    "cleanup_distributed",
    "distribute_loader",
    "distribute_model",
    "get_device",
    "get_rank",
    "get_world_size",
    "is_main_process",
    "load_checkpoint",
    "path_on_main",
    "print_main",
    "reduce_dict",
    "reduce_loss",
    "reduce_total",
    "save_checkpoint",
    "scaled_lr",
    "set_epoch",
    "setup_distributed",
    "share_batches",
    "share_random_state",
    "sum_over_ranks",
    "unwrap_model",
]
