"""Compression of DDP's gradients, by the communication hooks that torch has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

COMM_HOOKS = ("none", "fp16", "bf16", "powersgd")
POWERSGD_RANK = 2  # of the approximation
POWERSGD_START = 10  # steps with plain gradients first: the approximation starts from their errors


def register_comm_hook(model: nn.Module, name: str) -> None:
    """Let the gradients of a DDP model travel as `name` says; nothing happens for "none" or another model.

    fp16 and bf16 send half the bytes and round each gradient once; powersgd (Vogels et al. 2019, arXiv 1905.13727)
    sends two thin matrices per weight, after 10 plain steps, and keeps what that leaves out for the next step.
    Collective: every rank. Raises ValueError for an unknown name, and for bf16 where the backend cannot add bfloat16.
    """
    if name not in COMM_HOOKS:
        raise ValueError(f"unknown comm_hook {name!r}; use one of: {', '.join(COMM_HOOKS)}")
    if name == "none" or not isinstance(model, DistributedDataParallel):
        return
    if name == "bf16" and not adds_bfloat16(next(model.parameters()).device):
        raise ValueError(
            f"comm_hook bf16: {dist.get_backend()} of torch {torch.__version__} cannot add bfloat16; use fp16, or a "
            "newer torch"
        )
    state, hook = _hook(name)
    DistributedDataParallel.register_comm_hook(model, state, hook)  # DDPWrapper's own is for hooks of a script
    model.__dict__["_comm_hook"] = (state, hook)


def adds_bfloat16(device: torch.device) -> bool:
    """Return whether gradients of that device can be added as bfloat16; gloo of torch 2.1 cannot. Collective."""
    try:
        dist.all_reduce(torch.zeros(1, dtype=torch.bfloat16, device=device))
    except RuntimeError as error:
        if "scalar type" not in str(error):  # a peer that is gone, and the like
            raise
        return False
    return True


def _hook(name: str) -> tuple[Any, Any]:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if name == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            process_group=None, matrix_approximation_rank=POWERSGD_RANK, start_powerSGD_iter=POWERSGD_START
        )
        return state, _one_bucket_at_a_time(powerSGD_hook.powerSGD_hook)
    return None, default_hooks.fp16_compress_hook if name == "fp16" else default_hooks.bf16_compress_hook


def _one_bucket_at_a_time(hook: Callable[..., torch.futures.Future]) -> Callable[..., torch.futures.Future]:
    """Return the hook, over gloo finished with a bucket before the next one's gradients travel.

    PowerSGD sends thrice per bucket, the later times from callbacks. Those of gloo run whenever its threads get to
    them: two buckets at work would send in another order on each rank, which mixes up what is sent or ends in a crash,
    and the callbacks, which wait themselves, could take up all of the threads. On nccl they run at once.
    """

    def finished(state, bucket):  # type: ignore[no-untyped-def]  # DDP refuses annotations that are text
        future = hook(state, bucket)
        if not bucket.buffer().is_cuda or "nccl" not in dist.get_backend():
            future.wait()
        return future

    return finished
