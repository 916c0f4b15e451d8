"""The one table of what every rank must call: of torch.distributed and of the runtime.

A test compares it with the docstrings of the runtime's functions, which say "Collective: every rank".
"""

from __future__ import annotations

from .distribution import COLLECTIVES, RUNTIME

# In addition to those that combine values of the ranks, which `COLLECTIVES` has.
OTHERS = (
    "DDPWrapper", "EvaluationBatches", "FSDPWrapper", "ZeroModel", "ZeroOptimizer", "agreed_status",
    "backward", "cleanup_distributed", "clip_grad_norm", "distribute_criterion", "distribute_loader",
    "distribute_model", "distribute_parameter", "find_checkpoint", "finish_saves", "gather_state",
    "raise_together", "read_resumed", "reduce_last_loss", "reduce_loss", "reduce_summed_loss", "save_position",
    "setup_distributed", "share_random_state", "start_tracker", "whole_batch_loss", "whole_parameters",
    "wrap_optimizer",
)  # fmt: skip
OTHERS_OF_TORCH = (
    "all_to_all_single", "all_gather_coalesced", "all_reduce_coalesced", "reduce_scatter_v", "new_group",
    "new_subgroups", "init_process_group", "destroy_process_group", "checkpoint.save", "checkpoint.load",
    "checkpoint.async_save", "checkpoint.state_dict.get_model_state_dict", "checkpoint.state_dict.get_state_dict",
    "checkpoint.state_dict.get_optimizer_state_dict",
)  # fmt: skip
OF_HOROVOD = ("allreduce", "allgather", "broadcast", "broadcast_object", "broadcast_parameters", "barrier", "join")
EVERY_RANK = frozenset(
    {
        *COLLECTIVES,
        *(f"{RUNTIME}.{name}" for name in OTHERS),
        *(f"torch.distributed.{name}" for name in OTHERS_OF_TORCH),
        *(f"horovod.torch.{name}" for name in OF_HOROVOD),
    }
)
