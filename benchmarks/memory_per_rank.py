"""Bytes of parameters, gradients and optimizer state that every rank holds, strategy by strategy.

  torchrun --nproc_per_node=2 --standalone benchmarks/memory_per_rank.py
  torchrun --nproc_per_node=2 --standalone benchmarks/memory_per_rank.py --optimizer sgd --hidden 512

Counted are the storages of all tensors that live, each once: in front of training, after the backward of a micro
batch that is not the last of its step, after that of the last one, and after the step. Activations are gone by then.

In theory (Rajbhandari et al. 2020, arXiv 1910.02054), for parameters and gradients of B bytes (4, in bf16 2), an
optimizer of K bytes (float32 masters 4, and 8 for Adam or 4 for momentum) and N ranks, in bytes per parameter:
  ZeRO-1  B + B + K/N      ZeRO-2  B + (B + K)/N      ZeRO-3  (B + B + K)/N
DeepSpeed keeps masters also where the parameters are float32 themselves, so that K counts them there as well.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import retrofit.distributed as rd


def build(hidden: int) -> nn.Module:
    """Return a model whose weights are nearly all in four square matrices."""
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(hidden, hidden), nn.Tanh())))


def held_bytes(threshold: int = 4096) -> int:
    """Return the bytes of the storages of all live tensors in this process, small ones (scalars, counters) left out."""
    gc.collect()
    warnings.simplefilter("ignore", FutureWarning)  # of torch's own deprecated objects, when they are looked at
    sizes = {}
    for thing in gc.get_objects():
        if isinstance(thing, torch.Tensor) and thing.device.type != "meta":
            for tensor in (thing, thing.grad if thing.is_leaf else None):
                if tensor is not None:
                    storage = tensor.untyped_storage()
                    sizes[storage.data_ptr()] = storage.nbytes()
    return sum(size for size in sizes.values() if size >= threshold)


def measure_deepspeed(stage: int, hidden: int, kind: str, keep: int, bf16: bool) -> dict[str, float]:
    """Return bytes per parameter at four moments, the last three in the second step, under ZeRO `stage`.

    `keep` is DeepSpeed's stage3_param_persistence_threshold: smaller parameters stay whole.
    """
    settings = {"zero_optimization": {"stage3_param_persistence_threshold": keep, "reduce_bucket_size": 4096}}
    settings["zero_optimization"]["stage3_prefetch_bucket_size"] = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "zero.json"
        path.write_text(json.dumps({**settings, **({"bf16": {"enabled": True}} if bf16 else {})}))
        os.environ.update(RETROFIT_STRATEGY="deepspeed", RETROFIT_ZERO_STAGE=str(stage), RETROFIT_DS_CONFIG=str(path))
        rd.setup_distributed()
        before = held_bytes()
        model = rd.wrap_model(build(hidden))
        optimizer = torch.optim.AdamW(model.parameters()) if kind == "adamw" else momentum_sgd(model)
        num_params = sum(parameter.numel() for parameter in model.parameters())
        plan = rd.plan_batch(1, rd.get_world_size(), accum_steps=2)
        optimizer = rd.wrap_optimizer(model, optimizer, plan, amp="bf16" if bf16 else "off")
    result = {"at first": (held_bytes() - before) / num_params}
    for _ in range(2):
        x = torch.ones(1, hidden)
        for name, is_last in (("in accumulation", False), ("after backward", True)):
            with rd.gradient_sync(model, enabled=is_last):
                rd.backward(model, model(x).float().mean())
            result[name] = (held_bytes() - before) / num_params
        optimizer.step()
        result["after step"] = (held_bytes() - before) / num_params
    rd.cleanup_distributed()
    return result


def momentum_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", type=int, choices=(1, 2, 3), default=3, help="of ZeRO (default: %(default)s)")
    parser.add_argument("--hidden", type=int, default=1024, help="width of the model (default: %(default)s)")
    parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw", help="(default: %(default)s)")
    parser.add_argument("--bf16", action="store_true", help="parameters in bf16, masters in float32 (default: off)")
    parser.add_argument("--keep", type=int, default=0, help="elements up to which stage 3 does not shard (default: 0)")
    args = parser.parse_args()
    result = measure_deepspeed(args.stage, args.hidden, args.optimizer, args.keep, args.bf16)
    shown = ", ".join(f"{name} {value:.2f}" for name, value in result.items())
    if int(os.environ.get("RANK", "0")) == 0:
        print(f"ZeRO-{args.stage}, {args.optimizer}, bf16 {args.bf16}: bytes per parameter and rank: {shown}")


if __name__ == "__main__":
    main()
