"""torch.distributed, torch.multiprocessing and Horovod: process groups, collective calls, the number of a rank."""

from __future__ import annotations

from . import runtime

RANK, WORLD_SIZE = "rank", "world_size"


def _of_torch(*names: str, package: str = "torch.distributed") -> frozenset[str]:
    return frozenset(f"{package}.{name}" for name in names)


# Calls that join a process group, that ask whether there is one, that start processes.
JOIN_GROUP = "torch.distributed.init_process_group"
JOINS_GROUP = frozenset({JOIN_GROUP, runtime.SETUP})
ASKS_FOR_GROUP = _of_torch("is_initialized", "distributed_c10d.is_initialized")
SPAWNS = frozenset({"torch.multiprocessing.spawn", "torch.multiprocessing.start_processes"})  # given the rank first
STARTS_PROCESS = frozenset({"torch.multiprocessing.Process", "multiprocessing.Process"})

# What tells the number of a rank, or how many there are: calls, environment variables, names of variables.
GET_RANK = "torch.distributed.get_rank"
RANK_CALLS = {
    **dict.fromkeys((GET_RANK, "torch.distributed.get_node_local_rank", *runtime.RANK_CALLS), RANK),
    **dict.fromkeys(("torch.distributed.get_world_size", runtime.WORLD_SIZE_CALL), WORLD_SIZE),
}
RANK_VARIABLES = {
    "RANK": RANK, "LOCAL_RANK": RANK, "SLURM_PROCID": RANK, "SLURM_LOCALID": RANK, "OMPI_COMM_WORLD_RANK": RANK,
    "WORLD_SIZE": WORLD_SIZE, "SLURM_NTASKS": WORLD_SIZE, "OMPI_COMM_WORLD_SIZE": WORLD_SIZE,
}  # fmt: skip
WORLD_SIZE_NAMES = frozenset({"world_size", "ngpus_per_node", "nprocs"})
GPU_NAMES = frozenset({"gpu", "gpu_id"})  # of a rank's own GPU
# What is true on rank 0 alone: calls, names of variables; decorators that leave a function to rank 0.
ASKS_FOR_MAIN = frozenset({runtime.IS_MAIN, "torch.distributed.is_main_process"})
MAIN_NAMES = frozenset(
    {"is_main_process", "is_main", "is_master", "is_chief", "is_rank_zero", "is_primary", "is_rank0"}
)
MAIN_DECORATORS = frozenset({
    "rank_zero_only", "rank0_only", "master_only", "main_process_only", "main_only", "only_main_process",
    "only_on_main_process", "on_main_process", "is_main_process", "on_rank_zero", "only_rank_zero", "rank_zero",
})  # fmt: skip

# Collective calls of torch that combine values of the ranks: the result is the first argument, changed in place, on
# every rank, or on some of them; it is returned, with gradients.
SAME_IN_PLACE = _of_torch(
    "all_reduce", "broadcast", "all_gather", "all_gather_into_tensor", "all_gather_object", "broadcast_object_list",
    "all_reduce_coalesced", "all_gather_coalesced",
) | _of_torch("allreduce_", "broadcast_", package="horovod.torch")  # fmt: skip
GATHERS = _of_torch("all_gather", "all_gather_into_tensor")  # without gradients
ADDS_UP = _of_torch("all_reduce", "all_reduce_coalesced", "reduce_scatter_tensor")
FROM_ONE_RANK = _of_torch("broadcast", "broadcast_object_list") | runtime.FROM_MAIN
BARRIERS = _of_torch("barrier", "monitored_barrier") | {runtime.BARRIER}
WITH_GRADIENTS = frozenset(
    f"torch.distributed.{package}.{name}"
    for package in ("nn", "nn.functional")
    for name in (
        "all_gather", "all_reduce", "all_to_all", "broadcast", "gather", "reduce", "reduce_scatter", "scatter",
    )
)  # fmt: skip
COLLECTIVES = WITH_GRADIENTS | runtime.COMBINING | _of_torch(
    "all_reduce", "reduce", "broadcast", "broadcast_object_list", "all_gather", "all_gather_object", "gather",
    "gather_object", "scatter", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "all_to_all",
    "barrier", "monitored_barrier",
)  # fmt: skip
# Those by which ranks wait for each other or get what rank 0 has; those that make a term of a loss that of all ranks.
WITHOUT_SAMPLES = FROM_ONE_RANK | BARRIERS | runtime.GLOBAL_REDUCTIONS | {runtime.MAIN_FIRST, runtime.SAVE_CHECKPOINT}
# Those, and all others that every rank must call.
EVERY_RANK = COLLECTIVES | runtime.WITH_COLLECTIVES | _of_torch(
    "all_to_all_single", "all_gather_coalesced", "all_reduce_coalesced", "reduce_scatter_v", "new_group",
    "new_subgroups", "init_process_group", "destroy_process_group", "checkpoint.save", "checkpoint.load",
    "checkpoint.async_save", "checkpoint.state_dict.get_model_state_dict", "checkpoint.state_dict.get_state_dict",
    "checkpoint.state_dict.get_optimizer_state_dict",
) | _of_torch(
    "allreduce", "allgather", "broadcast", "broadcast_object", "broadcast_parameters", "barrier", "join",
    package="horovod.torch",
)  # fmt: skip
# Calls that return the same on every rank.
SAME_ON_ALL_RANKS = runtime.SAME_ON_ALL_RANKS | frozenset(
    f"torch.distributed.{package}.{name}"
    for package in ("nn", "nn.functional")
    for name in ("all_reduce", "all_gather", "broadcast")
) | _of_torch("allreduce", "allgather", "broadcast", "broadcast_object", package="horovod.torch")  # fmt: skip
# Those that every rank comes out of with one value, or one answer, whatever it had before.
AGREEING = COLLECTIVES | runtime.LOSS_READS
# What of these packages, and of Python, gives every rank the same of the same arguments.
COMPUTING = ("torch.", "numpy.", "scipy.", "sorted", "len", "range", "enumerate", runtime.ON_ANY_RANK)
