"""The runtime of a retrofitted script: torch and the standard library only.

Without a launcher every function is the identity, so one script serves one process and many. What most scripts need is
here; the rest is in the modules that are imported here too: `rd.loss.batch_sum`, `rd.checkpoint.save_position`.
"""

from . import checkpoint as checkpoint
from . import collectives as collectives
from . import data as data
from . import devices as devices
from . import environment as environment
from . import evaluation as evaluation
from . import job as job
from . import learning_rate as learning_rate
from . import loss as loss
from . import model as model
from . import options as options
from . import output as output
from . import process_group as process_group
from . import random_state as random_state
from . import strategies as strategies
from .batch import reduce_loss, reduce_total
from .checkpoint import load_checkpoint, save_checkpoint
from .collectives import reduce_dict
from .data import distribute_loader, set_epoch
from .ddp.unwrap import unwrap_model
from .ddp.wrapper import DDPWrapper
from .evaluation import share_batches, sum_over_ranks
from .learning_rate import scaled_lr
from .model import distribute_model
from .options import add_runtime_flags
from .output import path_on_main, print_main
from .process_group import (
    barrier,
    cleanup_distributed,
    get_device,
    get_rank,
    get_world_size,
    is_main_process,
    setup_distributed,
)
from .random_state import share_random_state
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
