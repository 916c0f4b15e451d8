"""The calls that bring values of all ranks together: what they give, or what they change, is the same on every rank."""

from __future__ import annotations

import ast

RUNTIME = "retrofit.distributed"
OF_THE_RUNTIME = {
    f"{RUNTIME}.{name}"
    for name in (
        "reduce_loss", "reduce_last_loss", "reduce_summed_loss", "sum_over_ranks", "gather_batches", "sum_attributes",
        "reduce_total",
        "gather_batch", "reduce_dict", "reduce_sum", "reduce_mean", "reduce_tensor_sum", "on_any_rank",
        "broadcast_object", "gather_objects", "batch_count", "raise_together", "global_batch", "batch_sum",
        "batch_mean", "get_world_size", "answer_of_main", "clip_grad_norm", "broadcast_buffers",
    )
}  # fmt: skip
OF_TORCH = {
    f"torch.distributed.{package}{name}"
    for package in ("nn.", "nn.functional.")
    for name in ("all_reduce", "all_gather", "broadcast")
}
OF_HOROVOD = {f"horovod.torch.{name}" for name in ("allreduce", "allgather", "broadcast", "broadcast_object")}
TOGETHER = OF_THE_RUNTIME | OF_TORCH | OF_HOROVOD
METHODS = {"gather", "gather_for_metrics", "all_gather", "all_reduce", "reduce"}  # of Accelerator and Fabric
LIBRARIES = ("accelerate.", "lightning.", "lightning_fabric.", "pytorch_lightning.")
# Of torch.distributed, with the first argument, which then is the same on every rank.
IN_PLACE = {
    f"torch.distributed.{name}"
    for name in (
        "all_reduce", "broadcast", "all_gather", "all_gather_into_tensor", "all_gather_object", "broadcast_object_list",
        "all_reduce_coalesced", "all_gather_coalesced",
    )
} | {f"horovod.torch.{name}" for name in ("allreduce_", "broadcast_")}  # fmt: skip


def gives_the_same(names: set[str]) -> bool:
    """Return whether every rank gets the same from a call of one of these names."""
    methods = (name for name in names if name.startswith(LIBRARIES))
    return bool(names & TOGETHER) or any(name.rpartition(".")[2] in METHODS for name in methods)


def made_the_same(call: ast.Call, names: set[str]) -> list[ast.expr]:
    """Return the arguments that a call changes to what all ranks have together."""
    return call.args[:1] if names & IN_PLACE else []
