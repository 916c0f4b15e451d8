"""Checkpoints: full, sharded, asynchronous, and positions within an epoch: `rd.checkpoint`."""

from .async_save import finish_saves
from .checkpoint_files import checkpoints_in, find_checkpoint, is_newest_checkpoint, restore_position, save_position
from .epochs import ResumableEpochs
from .full import load_checkpoint, load_weights, read_checkpoint, restore_checkpoint, save_checkpoint
from .saved_options import saved_options
from .sharded_state import gather_state

__all__ = [
    "ResumableEpochs",
    "checkpoints_in",
    "find_checkpoint",
    "finish_saves",
    "gather_state",
    "is_newest_checkpoint",
    "load_checkpoint",
    "load_weights",
    "read_checkpoint",
    "restore_checkpoint",
    "restore_position",
    "save_checkpoint",
    "save_position",
    "saved_options",
]
