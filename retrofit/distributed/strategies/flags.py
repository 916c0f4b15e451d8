"""The flags of strategies, DDP, checkpoints and logging, for a script that knows of them and keeps them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

from ..process.environment import read_environment
from ..process.options import DDP_FLAGS, FLAGS, MOST_RANKS, RuntimeFlag, get_option, read_twin, report_on_one_rank
from ..process.process_group import before_joining

_DTYPES = ("fp32", "auto", "bf16", "fp16")
LAUNCH_FLAGS = (
    RuntimeFlag(
        "world_size",
        1,
        "number of processes; set by the launcher, which wins (default: %(default)s)",
        int,
        bounds=(1, MOST_RANKS),
    ),
)
COMMUNICATION_FLAGS = (
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
        "write checkpoints in the background, from a copy in host memory, while the training continues (default: off)",
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
RUNTIME_FLAGS = DDP_FLAGS + LAUNCH_FLAGS + COMMUNICATION_FLAGS + STRATEGY_FLAGS + CHECKPOINT_FLAGS + LOGGING_FLAGS
FLAGS.update({flag.name: flag for flag in RUNTIME_FLAGS})


# Options that say where a process runs, not what is trained.
PLACE_FLAGS = (
    "distributed", "local_rank", "world_size", "dist_url", "dist_backend", "dist_timeout",
    "strategy", "sharding", "shard_size", "cpu_offload", "zero_stage", "ds_config", "ckpt", "async_save",
)  # fmt: skip


def add_all_flags(parser: argparse.ArgumentParser, environ: Mapping[str, str] | None = None) -> argparse.ArgumentParser:
    """Add every runtime flag to `parser` and return it; defaults come from the environment twins.

    The values are in the parsed options. `RETROFIT_BATCH=global` sets the default of `--batch`; the flag on the command
    line wins. What the parser refuses is reported by one rank per node; the others exit with status 2 in silence.
    Raises ValueError for a twin whose value its flag would refuse.
    """
    environ = os.environ if environ is None else environ
    report_on_one_rank(parser, environ)
    group = parser.add_argument_group("distributed training", "each flag has an environment twin RETROFIT_<FLAG>")
    for flag in RUNTIME_FLAGS:
        names, default = (f"--{flag.name}", *flag.aliases), read_twin(flag, environ)
        if flag.type is bool:
            group.add_argument(*names, action="store_true", default=default, help=flag.help)
        else:
            group.add_argument(*names, type=flag.parse, choices=flag.choices, default=default, help=flag.help)
    return parser


def check_world_size() -> None:
    """Tell what `--world_size` does not do. Raises ValueError where no launcher has started the processes."""
    place, asked = read_environment(os.environ), get_option("world_size")
    if place.launcher == "none" and asked > 1:
        raise ValueError(
            f"--world_size {asked} but no launcher started the processes; use torchrun --nproc_per_node={asked} ..., "
            "which sets RANK, WORLD_SIZE and LOCAL_RANK"
        )
    if asked not in (1, place.world_size) and place.rank == 0:
        print(f"notice: --world_size {asked} ignored, the launcher set WORLD_SIZE={place.world_size}")


before_joining.append(check_world_size)
