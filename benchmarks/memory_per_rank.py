"""Bytes of parameters, gradients and optimizer state that every rank holds, strategy by strategy, next to the theory.

  torchrun --nproc_per_node=4 --standalone benchmarks/memory_per_rank.py
  torchrun --nproc_per_node=4 --standalone benchmarks/memory_per_rank.py --output docs/memory.md --plot docs/memory.png
  torchrun --nproc_per_node=2 --standalone benchmarks/memory_per_rank.py --only "ZeRO-2" "ZeRO-3" --width 64

A ViT of equal layers trains two steps with AdamW under each strategy, through wrap_model and wrap_optimizer. Of the
second step the peak is taken, sampled after every layer's forward, in every layer's backward, and around the step;
and what is left between steps. held_memory.py says what is counted: parameters, gathered ones too, gradients, buckets
and optimizer state, each storage once. Activations and temporaries are not. Sizes are bytes per parameter.

In theory (Rajbhandari et al. 2020, arXiv 1910.02054), for parameters and gradients of B bytes (4, in bf16 2), an
optimizer of K bytes (AdamW: 8, and 4 more for float32 masters) and N ranks:
  DDP     B + B + K      ZeRO-1  B + B + K/N      ZeRO-2  B + (B + K)/N      ZeRO-3  (B + B + K)/N
FSDP's FULL_SHARD is ZeRO-3 and its SHARD_GRAD_OP ZeRO-2, both with the float32 parameters as their own masters (K = 8).
DeepSpeed keeps masters also where the parameters are float32 themselves (K = 12).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torchvision.models import VisionTransformer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from held_memory import ROLES, PeakOfStep, held_by_role

import retrofit.distributed as rd
from retrofit.distributed.strategies.select import wrap_model

LAYER = "EncoderBlock"
BUCKETS = 50  # DeepSpeed reduces a fiftieth of the gradients at once; its default, 5e8 elements, is a whole small model


class Variant(NamedTuple):
    """A strategy, the options that wrap_model gets, DeepSpeed's stage, and what the theory says it holds."""

    strategy: str
    options: dict[str, Any]
    zero_stage: int
    is_bf16: bool
    sharded: tuple[bool, bool, bool]  # parameters, gradients, optimizer
    why: str  # what it holds beyond that

    def theory(self, world_size: int) -> dict[str, float]:
        size = 2 if self.is_bf16 and self.strategy == "deepspeed" else 4
        whole = (size, size, 12 if self.strategy == "deepspeed" else 8)
        return {role: b / world_size if cut else b for role, b, cut in zip(ROLES, whole, self.sharded)}


DDP_WHY = "DDP's buckets: a second copy of all gradients, which stays between steps"
VIEW_WHY = "a gradient until it is in its bucket; the gradients are the buckets, which stay between steps"
FULL_WHY = "the parameters and gradients of the layer at work, whole"
GRAD_WHY = (
    "the shards next to the gathered parameters, B/N, and the gradients of the layer at work, whole; less the shards "
    "of gradients, which come only as gathered parameters go"
)
ZERO_1_WHY = "a bucket under way; the gradients are dropped in the step"
ZERO_2_WHY = "the gradients on their way to their owner: a bucket, or one parameter that is larger"
ZERO_3_WHY = "the gathered parameters of the module at work and the bucket; the gradients' shard stays between steps"


def all_variants() -> dict[str, Variant]:
    """Return the strategies to measure by name."""
    whole, all_sharded = (False, False, False), (True, True, True)
    fsdp = {"wrap_layers": [LAYER]}
    lower = {**fsdp, "mixed_precision": rd.strategies.MixedPrecision(torch.bfloat16)}
    grad_op = {"sharding_strategy": "SHARD_GRAD_OP"}
    variants = {
        "DDP": Variant("ddp", {}, 0, False, whole, DDP_WHY),
        "DDP, gradient_as_bucket_view": Variant("ddp", {"gradient_as_bucket_view": True}, 0, False, whole, VIEW_WHY),
        "FSDP SHARD_GRAD_OP": Variant("fsdp", {**fsdp, **grad_op}, 0, False, (False, True, True), GRAD_WHY),
        "FSDP FULL_SHARD": Variant("fsdp", fsdp, 0, False, all_sharded, FULL_WHY),
        "FSDP FULL_SHARD, bf16": Variant("fsdp", lower, 0, True, all_sharded, FULL_WHY),
    }
    for bf16 in (False, True):
        end = ", bf16" if bf16 else ""
        variants[f"ZeRO-1{end}"] = Variant("deepspeed", {}, 1, bf16, (False, False, True), ZERO_1_WHY)
        variants[f"ZeRO-2{end}"] = Variant("deepspeed", {}, 2, bf16, (False, True, True), ZERO_2_WHY)
        variants[f"ZeRO-3{end}"] = Variant("deepspeed", {}, 3, bf16, all_sharded, ZERO_3_WHY)
    return variants


def build(width: int, depth: int) -> nn.Module:
    """Return a ViT whose weights are nearly all in `depth` equal layers; 5 tokens per image, so few activations."""
    torch.manual_seed(0)
    sizes = {"num_heads": 4, "hidden_dim": width, "mlp_dim": 4 * width, "num_classes": 10}
    return VisionTransformer(image_size=32, patch_size=16, num_layers=depth, **sizes)


@contextmanager
def runtime_options(variant: Variant, bucket: int) -> Iterator[None]:
    """Set the runtime's options by their twins, DeepSpeed's in a file."""
    with tempfile.TemporaryDirectory() as folder:
        zero = {"stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 0, "overlap_comm": False}
        zero.update(reduce_bucket_size=bucket, allgather_bucket_size=bucket)
        zero.update(stage3_max_live_parameters=0, stage3_max_reuse_distance=0)  # by default 1e9 stay gathered
        config = {"zero_optimization": zero, **({"bf16": {"enabled": True}} if variant.is_bf16 else {})}
        path = Path(folder, "zero.json")
        path.write_text(json.dumps(config))
        twins = {"RETROFIT_STRATEGY": variant.strategy}
        if variant.strategy == "deepspeed":
            twins.update(RETROFIT_ZERO_STAGE=str(variant.zero_stage), RETROFIT_DS_CONFIG=str(path))
        os.environ.update(twins)  # what DeepSpeed itself puts there has to stay
        try:
            yield
        finally:
            for name in twins:
                del os.environ[name]


def measure(variant: Variant, width: int, depth: int) -> dict[str, dict[str, float]]:
    """Return bytes per parameter by role, at the peak of the second step and after it. Collective: every rank."""
    model = build(width, depth)
    num_params = sum(parameter.numel() for parameter in model.parameters())
    with runtime_options(variant, num_params // BUCKETS // 64 * 64):
        model = wrap_model(model, **variant.options)
        optimizer = torch.optim.AdamW(model.parameters())
        optimizer = rd.strategies.wrap_optimizer(model, optimizer, amp="bf16" if variant.is_bf16 else "off")
    peak = PeakOfStep(model, optimizer)
    for step in range(2):
        peak.is_on = step == 1
        output = model(torch.ones(1, 3, 32, 32))
        rd.strategies.backward(model, output.float().mean())
        if peak.is_on:
            peak.sample()
        optimizer.step()
        if peak.is_on:
            peak.sample()
        optimizer.zero_grad()
    found = {"peak": peak.peak, "between": held_by_role(model, optimizer)}
    return {moment: {role: size / num_params for role, size in held.items()} for moment, held in found.items()}


def largest_of_ranks(figures: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return the figures of the rank that holds most at its peak. Collective: every rank."""
    return max(rd.collectives.gather_objects(figures), key=lambda one: sum(one["peak"].values()))


def get_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=256, help="of the ViT; 12 width^2 per layer (default: 256)")
    parser.add_argument("--depth", type=int, default=12, help="layers of the ViT (default: %(default)s)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="strategies to measure (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there (default: no)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the Markdown page there (default: no)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the bar chart there, a PNG (default: no)")
    args = parser.parse_args()
    unknown = set(args.only or ()) - set(all_variants())
    if unknown:
        parser.error(f"no strategy {', '.join(sorted(unknown))}; there are {', '.join(all_variants())}")
    return args


def main() -> None:
    args = get_arguments()
    if "RANK" not in os.environ:
        sys.exit("start it with torchrun --nproc_per_node=4 --standalone benchmarks/memory_per_rank.py")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    results = {}
    for name, variant in all_variants().items():
        if variant.strategy == "deepspeed" and find_spec("deepspeed") is None:
            rd.print_main(f"{name}: not measured, deepspeed is not installed")
        elif name in (args.only or (name,)):
            figures = {"theory": variant.theory(rd.get_world_size())}
            results[name] = {**figures, **largest_of_ranks(measure(variant, args.width, args.depth))}
            sums = ", ".join(f"{moment} {sum(held.values()):.2f}" for moment, held in results[name].items())
            rd.print_main(f"{name}: bytes per parameter: {sums}")
    if rd.is_main_process():
        write(args, results)
    dist.barrier()
    dist.destroy_process_group()


def write(args: argparse.Namespace, results: dict[str, Any]) -> None:
    from memory_report import draw, page

    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    if args.output:
        num_params = sum(parameter.numel() for parameter in build(args.width, args.depth).parameters())
        facts = {"num_params": num_params, "world_size": rd.get_world_size(), "width": args.width, "depth": args.depth}
        versions = {"python": platform.python_version(), "torch": torch.__version__, "deepspeed": deepspeed_version()}
        reasons = {name: variant.why for name, variant in all_variants().items()}
        picture = args.plot.name if args.plot else None
        args.output.write_text(page(results, {**facts, **versions}, reasons, picture), encoding="utf-8")
    if args.plot:
        draw(results, rd.get_world_size(), args.plot)


def deepspeed_version() -> str:
    from importlib.metadata import version

    return version("deepspeed") if find_spec("deepspeed") else "not installed"


if __name__ == "__main__":
    main()
