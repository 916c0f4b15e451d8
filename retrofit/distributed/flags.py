"""The runtime's options: one table, from which the parsers' flags and the environment twins are made."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

# Options that say where a process runs, not what is trained.
PLACE_FLAGS = (
    "distributed", "local_rank", "world_size", "dist_url", "dist_backend", "dist_timeout",
    "strategy", "sharding", "shard_size", "cpu_offload", "zero_stage", "ds_config", "ckpt", "async_save",
)  # fmt: skip


MOST_RANKS = 2**20


@dataclass(frozen=True)
class RuntimeFlag:
    """One runtime option: how a parser declares it and how its environment twin is read."""

    name: str
    default: Any
    help: str
    type: type = str
    choices: tuple[Any, ...] | None = None
    aliases: tuple[str, ...] = ()
    bounds: tuple[float, float] | None = None  # of a number, both included

    def parse(self, text: str) -> Any:
        """Return the value that `text` is; takes what argparse's `type` takes. Raises argparse.ArgumentTypeError."""
        try:
            value = self.type(text)
        except (ValueError, OverflowError):
            raise argparse.ArgumentTypeError(f"invalid {self.type.__name__} value: {text!r}") from None
        if self.bounds is not None and not self.bounds[0] <= value <= self.bounds[1]:  # nan is not
            raise argparse.ArgumentTypeError(f"must be from {self.bounds[0]:g} to {self.bounds[1]:g}, got {text!r}")
        return value

    @property
    def environment_twin(self) -> str:
        return f"RETROFIT_{self.name.upper()}"


DDP_FLAGS = (
    RuntimeFlag(
        "distributed",
        False,
        "train in a process group; without a launcher a real group of one process (default: only when a launcher "
        "started more than one process)",
        bool,
    ),
    RuntimeFlag(
        "local_rank",
        -1,
        "index of this process's GPU on its node; a launcher's LOCAL_RANK wins (default: -1, from the environment)",
        int,
        bounds=(-1, MOST_RANKS),
        aliases=("--local-rank",),  # what torch.distributed.launch passes since torch 2.0
    ),
    RuntimeFlag(
        "world_size",
        1,
        "number of processes; set by the launcher, which wins (default: %(default)s)",
        int,
        bounds=(1, MOST_RANKS),
    ),
    RuntimeFlag("dist_url", "env://", "where the processes meet: env:// or tcp://HOST:PORT (default: %(default)s)"),
    RuntimeFlag(
        "dist_backend",
        "auto",
        "communication backend (default: %(default)s = nccl on CUDA, gloo on CPU)",
        choices=("auto", "nccl", "gloo"),
    ),
    RuntimeFlag(
        "dist_timeout",
        1800.0,
        "seconds a collective waits for the slowest rank (default: %(default)s)",
        float,
        bounds=(0.001, 1e7),
    ),
    RuntimeFlag(
        "batch",
        "per_gpu",
        "what the batch size counts: samples per GPU, or per optimizer step over all GPUs (default: %(default)s)",
        choices=("per_gpu", "global"),
    ),
    RuntimeFlag(
        "lr_scale",
        "linear",
        "learning rate factor for global batch / batch size; none switches it off (default: %(default)s)",
        choices=("linear", "sqrt", "none"),
    ),
    RuntimeFlag(
        "find_unused_parameters",
        False,
        "let DDP itself look in every step for parameters that take no part in the loss; slower (default: off, "
        "the runtime finds them)",
        bool,
    ),
    RuntimeFlag(
        "comm_hook",
        "none",
        "how DDP's gradients travel: fp16 and bf16 halve them, powersgd sends a low-rank approximation, which is "
        "another training (default: %(default)s)",
        choices=("none", "fp16", "bf16", "powersgd"),
    ),
    RuntimeFlag(
        "bucket_cap_mb",
        25.0,
        "MiB of gradients that DDP sends at once (default: %(default)s)",
        float,
        bounds=(0.001, 1e6),
    ),
    RuntimeFlag(
        "gradient_as_bucket_view",
        False,
        "let gradients live in DDP's buckets, which saves one copy of them (default: off)",
        bool,
    ),
    RuntimeFlag(
        "static_graph",
        False,
        "promise DDP that every step uses the same parameters in the same order (default: off)",
        bool,
    ),
)

_DTYPES = ("fp32", "auto", "bf16", "fp16")
STRATEGY_FLAGS = (
    RuntimeFlag(
        "strategy",
        "auto",
        "how the model is trained on several GPUs: single, dp (nn.DataParallel, one process), ddp, fsdp (sharded "
        "parameters), deepspeed (ZeRO) (default: %(default)s = ddp in a process group, else single)",
        choices=("auto", "single", "dp", "ddp", "fsdp", "deepspeed"),
    ),
    RuntimeFlag(
        "sharding",
        "FULL_SHARD",
        "what fsdp shards: all; gradients and optimizer state; nothing (= ddp); all within a node, with a replica per "
        "node (default: %(default)s)",
        choices=("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD"),
    ),
    RuntimeFlag(
        "shard_size",
        0,
        "ranks that share one replica under HYBRID_SHARD; 0 = those of a node (default: 0)",
        int,
        bounds=(0, MOST_RANKS),
    ),
    RuntimeFlag(
        "wrap_layers",
        "",
        "classes whose layers fsdp gathers one by one, and --grad_ckpt recomputes, with commas between them: "
        "BertLayer,Bottleneck (default: by size)",
    ),
    RuntimeFlag(
        "min_num_params",
        1e6,
        "parameters from which on a part is a layer, without --wrap_layers (default: 1e6)",
        float,
        bounds=(0, 1e15),
    ),
    RuntimeFlag(
        "param_dtype",
        "fp32",
        "of the gathered parameters and the computation under fsdp; auto = bf16 where supported, else fp16 (default: "
        "%(default)s)",
        choices=_DTYPES,
    ),
    RuntimeFlag(
        "reduce_dtype", "fp32", "of the gradients on the wire under fsdp (default: %(default)s)", choices=_DTYPES
    ),
    RuntimeFlag("buffer_dtype", "fp32", "of the buffers under fsdp (default: %(default)s)", choices=_DTYPES),
    RuntimeFlag("cpu_offload", False, "keep fsdp's shards and optimizer state in host memory (default: off)", bool),
    RuntimeFlag(
        "grad_ckpt",
        False,
        "recompute the activations of the wrapped layers in backward, to save memory (default: off)",
        bool,
    ),
    RuntimeFlag(
        "zero_stage",
        2,
        "what deepspeed shards: 1 optimizer state, 2 gradients as well, 3 parameters as well; 0 nothing (default: "
        "%(default)s)",
        int,
        choices=(0, 1, 2, 3),
    ),
    RuntimeFlag("ds_config", "", "JSON file of deepspeed settings; ours are filled in (default: none)"),
)
CHECKPOINT_FLAGS = (
    RuntimeFlag(
        "ckpt",
        "full",
        "what a checkpoint is: one file that rank 0 writes, or a folder to which every rank writes its own part, on a "
        "disk that all nodes share; --resume takes either (default: %(default)s)",
        choices=("full", "sharded"),
    ),
    RuntimeFlag(
        "async_save",
        False,
        "write checkpoints in the background, from a copy in host memory, while the training goes on (default: off)",
        bool,
    ),
)
LOGGING_FLAGS = (
    RuntimeFlag(
        "log_level",
        "INFO",
        "what rank 0 shows of logging; the other ranks' warnings and errors (DEBUG: everything) go to rank1.log and so "
        "on in the run's folder (default: %(default)s)",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
    ),
)
RUNTIME_FLAGS = DDP_FLAGS + STRATEGY_FLAGS + CHECKPOINT_FLAGS + LOGGING_FLAGS
