"""The runtime of a retrofitted script: torch and the standard library only.

Without a launcher every function is the identity, so one script serves one process and many.
"""

from .arguments import (
    add_distributed_arguments,
    add_runtime_flags,
    distributed_options,
    without_place,
    without_twins,
)
from .async_save import finish_saves
from .batch_weight import (
    batch_count,
    gather_batch,
    global_batch,
    rank_share,
    reduce_last_loss,
    reduce_loss,
    reduce_summed_loss,
    reduce_total,
    sum_loss,
)
from .bypass import run_alone
from .checkpoint import load_checkpoint, load_weights, read_checkpoint, restore_checkpoint, save_checkpoint
from .converted import (
    distribute_loader,
    distribute_model,
    micro_batch,
    own_batch_size,
    samples_per_step,
    scale_optimizer,
    scaled_lr,
    set_epoch,
    share_random_state,
    visible_gpus,
)
from .coupled import batch_mean, batch_sum, whole_batch_loss
from .criterion import distribute_criterion
from .data import EvaluationSampler, ShardedSampler, loader_workers, shard_eval_loader, shard_loader
from .data_parallel import data_parallel, fitting_keys, is_data_parallel, script_model
from .ddp import DDPWrapper, broadcast_buffers, settle_buckets
from .environment import DistributedEnvironment, read_environment
from .epochs import ResumableEpochs
from .evaluation import gather_batches, same_batches, share_batches, sum_attributes, sum_over_ranks
from .even_forwards import even_forwards
from .failure import report_failure
from .fsdp import FSDPWrapper, MixedPrecision, is_sharded
from .gpus import own_device, own_gpu_count
from .interruption import Interruption
from .output import SilentObject, answer_of_main, on_main_process, path_on_main, print_main, quiet_logging
from .parallel import (
    backward,
    clip_grad_norm,
    gradient_sync,
    resolve_strategy,
    whole_parameters,
    wrap_model,
    wrap_optimizer,
)
from .parameter import distribute_parameter
from .process_group import (
    barrier,
    cleanup_distributed,
    get_device,
    get_local_rank,
    get_option,
    get_rank,
    get_world_size,
    is_distributed,
    is_main_process,
    main_process_first,
    set_options,
    setup_distributed,
)
from .random_state import get_rng_state, seed_everything, set_rng_state, split_random_streams
from .rank_logging import keep_rank_log_in, setup_rank_logging
from .reduce import (
    broadcast_object,
    gather_objects,
    global_mean,
    on_any_rank,
    raise_together,
    reduce_dict,
    reduce_mean,
    reduce_sum,
    reduce_sum_later,
    reduce_tensor_sum,
)
from .restart import claim_run, own_run, resume_own_run
from .resume import checkpoints_in, find_checkpoint, is_newest_checkpoint, save_position
from .scaling import BatchPlan, plan_batch, scale_lr
from .sharded_state import gather_state
from .sync_batchnorm import convert_sync_batchnorm
from .tracker import start_tracker
from .unwrap import unwrap_model
from .zero import ZeroModel, ZeroOptimizer

__all__ = [
    "BatchPlan",
    "DDPWrapper",
    "DistributedEnvironment",
    "EvaluationSampler",
    "FSDPWrapper",
    "Interruption",
    "MixedPrecision",
    "ResumableEpochs",
    "ShardedSampler",
    "SilentObject",
    "ZeroModel",
    "ZeroOptimizer",
    "add_distributed_arguments",
    "add_runtime_flags",
    "answer_of_main",
    "backward",
    "barrier",
    "batch_count",
    "batch_mean",
    "batch_sum",
    "broadcast_buffers",
    "broadcast_object",
    "checkpoints_in",
    "claim_run",
    "cleanup_distributed",
    "clip_grad_norm",
    "convert_sync_batchnorm",
    "data_parallel",
    "distribute_criterion",
    "distribute_loader",
    "distribute_model",
    "distribute_parameter",
    "distributed_options",
    "even_forwards",
    "find_checkpoint",
    "finish_saves",
    "fitting_keys",
    "gather_batch",
    "gather_batches",
    "gather_objects",
    "gather_state",
    "get_device",
    "get_local_rank",
    "get_option",
    "get_rank",
    "get_rng_state",
    "get_world_size",
    "global_batch",
    "global_mean",
    "gradient_sync",
    "is_data_parallel",
    "is_distributed",
    "is_main_process",
    "is_newest_checkpoint",
    "is_sharded",
    "keep_rank_log_in",
    "load_checkpoint",
    "load_weights",
    "loader_workers",
    "main_process_first",
    "micro_batch",
    "on_any_rank",
    "on_main_process",
    "own_batch_size",
    "own_device",
    "own_gpu_count",
    "own_run",
    "path_on_main",
    "plan_batch",
    "print_main",
    "quiet_logging",
    "raise_together",
    "rank_share",
    "read_checkpoint",
    "read_environment",
    "reduce_dict",
    "reduce_last_loss",
    "reduce_loss",
    "reduce_mean",
    "reduce_sum",
    "reduce_sum_later",
    "reduce_summed_loss",
    "reduce_tensor_sum",
    "reduce_total",
    "report_failure",
    "resolve_strategy",
    "restore_checkpoint",
    "resume_own_run",
    "run_alone",
    "same_batches",
    "samples_per_step",
    "save_checkpoint",
    "save_position",
    "scale_lr",
    "scale_optimizer",
    "scaled_lr",
    "script_model",
    "seed_everything",
    "set_epoch",
    "set_options",
    "set_rng_state",
    "settle_buckets",
    "setup_distributed",
    "setup_rank_logging",
    "shard_eval_loader",
    "shard_loader",
    "share_batches",
    "share_random_state",
    "split_random_streams",
    "start_tracker",
    "sum_attributes",
    "sum_loss",
    "sum_over_ranks",
    "unwrap_model",
    "visible_gpus",
    "whole_batch_loss",
    "whole_parameters",
    "without_place",
    "without_twins",
    "wrap_model",
    "wrap_optimizer",
]
