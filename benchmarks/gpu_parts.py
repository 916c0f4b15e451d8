"""The measurements of gpu.py: `python benchmarks/gpu_parts.py PART --device cuda` prints one as a line of JSON.

A part is a function of the sizes that returns its figures: name -> value, units in the names. Compared variants take
turns, round by round, after one round to warm up; the median of the ratios round by round is given.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import retrofit.distributed as rd
from retrofit.distributed.strategies.select import wrap_model
from segmentation.losses import cross_entropy_sum
from segmentation.models import build_model

NUM_CLASSES = 21
RESULT = "RESULT "  # what the line with the figures begins with
GLOO_TOLERANCE = 1e-4  # of the weights after three steps in float32; sums in another order differ by 1e-6 or so


class Sizes(NamedTuple):
    """How much is measured: layers of the models, side of the images in pixels, images per batch, steps, rounds."""

    device: str
    layers: int
    side: int
    batch: int
    steps: int
    rounds: int


SIZES = {"cuda": Sizes("cuda", 50, 256, 16, 5, 7), "cpu": Sizes("cpu", 18, 32, 2, 1, 1)}
Step = Callable[[], None]


def make_step(sizes: Sizes, model: nn.Module, amp: bool = True, channels_last: bool = False) -> Step:
    """Return a function that trains `model` one step on made-up images, as train.py does."""
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    image, label = batch_of(sizes, sizes.batch)
    if channels_last:
        image = image.contiguous(memory_format=torch.channels_last)

    def step() -> None:
        with torch.autocast(sizes.device, torch.bfloat16, enabled=amp):
            logits = model(image)
        rd.strategies.backward(model, cross_entropy_sum(logits, label) / label.numel())
        optimizer.step()
        optimizer.zero_grad()

    return step


def batch_of(sizes: Sizes, num_images: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images (N, 3, side, side) and labels (N, side, side) on the device."""
    generator = torch.Generator().manual_seed(seed)
    image = torch.randn(num_images, 3, sizes.side, sizes.side, generator=generator)
    label = torch.randint(0, NUM_CLASSES, (num_images, sizes.side, sizes.side), generator=generator)
    return image.to(sizes.device), label.to(sizes.device)


def new_model(sizes: Sizes, model_type: str = "deeplabv3p") -> nn.Module:
    torch.manual_seed(0)
    return build_model(model_type, sizes.layers, NUM_CLASSES).to(sizes.device)


def synchronize(sizes: Sizes) -> None:
    if sizes.device == "cuda":
        torch.cuda.synchronize()


def compare(sizes: Sizes, variants: dict[str, Callable[[], Step]]) -> dict[str, float]:
    """Return the time and peak memory of each variant and their ratios to those of the first.

    `variants` make the model and return its step. Memory is taken of each variant alone, times in turns.
    """
    figures: dict[str, float] = {}
    if sizes.device == "cuda":
        for name, make in variants.items():
            figures[f"{name}: peak memory, MiB"] = peak_mib(make)
    steps = {name: make() for name, make in variants.items()}
    taken: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(sizes.rounds + 1):
        for name, step in steps.items():
            synchronize(sizes)
            started = time.perf_counter()
            for _ in range(sizes.steps):
                step()
            synchronize(sizes)
            if number:
                taken[name].append((time.perf_counter() - started) / sizes.steps * 1000)
    first = next(iter(variants))
    for name, times in taken.items():
        figures[f"{name}: step, ms"] = statistics.median(times)
        if name != first:
            ratio = statistics.median(a / b for a, b in zip(times, taken[first]))
            figures[f"time, {name} / {first}"] = ratio
            if sizes.device == "cuda":
                memory = [figures[f"{which}: peak memory, MiB"] for which in (name, first)]
                figures[f"memory, {name} / {first}"] = memory[0] / memory[1]
    return figures


def peak_mib(make: Callable[[], Step]) -> float:
    """Return the peak of allocated GPU memory over two steps of a model that is made for it."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step = make()
    step()
    step()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def nccl(sizes: Sizes) -> dict[str, Any]:
    """A group of one process over NCCL, as setup_distributed makes it: all_reduce, and DDP's steps."""
    rd.setup_distributed(argparse.Namespace(distributed=True))
    value = torch.arange(4.0, device=sizes.device)
    dist.all_reduce(value)
    assert value.tolist() == [0.0, 1.0, 2.0, 3.0], f"all_reduce of one rank changed the values: {value}"
    assert rd.sum_over_ranks(2.0) == 2.0, "sum_over_ranks of one rank changed the value"
    variants = {
        "no group": lambda: make_step(sizes, new_model(sizes)),
        "DDP x1": lambda: make_step(sizes, wrap_model(new_model(sizes), "ddp")),
    }
    figures = {"backend": str(dist.get_backend_config()), **compare(sizes, variants)}
    rd.barrier()
    rd.cleanup_distributed()
    return figures


def gloo_two_ranks(sizes: Sizes) -> dict[str, Any]:
    """Two ranks on one device over gloo: the weights are those of one process with the same global batch."""
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    alone = train_three_steps(sizes, rank=0, world_size=1)
    rd.setup_distributed()
    together = train_three_steps(sizes, rd.get_rank(), rd.get_world_size())
    rd.cleanup_distributed()
    difference = max((together[name] - value).abs().max().item() for name, value in alone.items())
    largest = max(value.abs().max().item() for value in alone.values())
    if not difference <= GLOO_TOLERANCE:
        raise RuntimeError(f"weights differ by {difference:.2e} from one process's; the tolerance is {GLOO_TOLERANCE}")
    return {"largest difference of a weight": difference, "largest weight": largest}


def train_three_steps(sizes: Sizes, rank: int, world_size: int) -> dict[str, torch.Tensor]:
    """Return the weights after three steps of SGD on this rank's share, in float32; a model without BatchNorm."""
    model = wrap_model(new_model(sizes, "swin_mlp"))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for step in range(3):
        image, label = batch_of(sizes, 4, seed=step)
        own = slice(rank, None, world_size)
        loss = cross_entropy_sum(model(image[own]), label[own]) / rd.loss.rank_share(label.numel())
        rd.strategies.backward(model, loss)
        optimizer.step()
        optimizer.zero_grad()
    return {name: value.detach().clone() for name, value in rd.unwrap_model(model).named_parameters()}


def fsdp(sizes: Sizes) -> dict[str, Any]:
    """FSDP with parameters gathered in bf16 against DDP with autocast, in a group of this process, or of two."""
    rd.setup_distributed(argparse.Namespace(distributed=True))
    precision = rd.strategies.MixedPrecision(torch.bfloat16)
    layers = {"wrap_layers": ["SwinTransformerBlock"], "mixed_precision": precision}

    def sharded() -> Step:
        return make_step(sizes, wrap_model(new_model(sizes, "swin_mlp"), "fsdp", **layers), amp=False)

    variants = {
        "DDP bf16 autocast": lambda: make_step(sizes, wrap_model(new_model(sizes, "swin_mlp"), "ddp")),
        "FSDP bf16": sharded,
    }
    figures = compare(sizes, variants)
    rd.cleanup_distributed()
    return {"ranks": int(os.environ.get("WORLD_SIZE", "1")), **figures}


def compiled(sizes: Sizes) -> dict[str, Any]:
    """torch.compile on and off, AMP bf16. On the CPU without a code generator, which takes minutes there."""
    backend = "inductor" if sizes.device == "cuda" else "eager"
    variants = {
        "plain": lambda: make_step(sizes, new_model(sizes)),
        "compiled": lambda: make_step(sizes, torch.compile(new_model(sizes), backend=backend)),
    }
    started = time.perf_counter()
    variants["compiled"]()()
    synchronize(sizes)
    first = time.perf_counter() - started
    return {"compile backend": backend, "first step with compilation, s": first, **compare(sizes, variants)}


def channels_last(sizes: Sizes) -> dict[str, Any]:
    """Images and weights in NHWC and in NCHW, AMP bf16."""

    def in_nhwc() -> Step:
        return make_step(sizes, new_model(sizes).to(memory_format=torch.channels_last), channels_last=True)

    return compare(sizes, {"NCHW": lambda: make_step(sizes, new_model(sizes)), "channels_last": in_nhwc})


def recompute(sizes: Sizes) -> dict[str, Any]:
    """Activations of the transformer's layers kept and recomputed (--grad_ckpt), AMP bf16."""

    def recomputing() -> Step:
        twins = {"RETROFIT_GRAD_CKPT": "1", "RETROFIT_WRAP_LAYERS": "SwinTransformerBlock"}
        with mock.patch.dict(os.environ, twins):
            return make_step(sizes, wrap_model(new_model(sizes, "swin_mlp")))

    kept = {"kept": lambda: make_step(sizes, wrap_model(new_model(sizes, "swin_mlp")))}
    return compare(sizes, {**kept, "recomputed": recomputing})


PARTS: dict[str, Callable[[Sizes], dict[str, Any]]] = {
    "nccl": nccl,
    "gloo_two_ranks": gloo_two_ranks,
    "fsdp": fsdp,
    "fsdp_two_ranks": fsdp,
    "compile": compiled,
    "channels_last": channels_last,
    "recompute": recompute,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS, help="what to measure")
    parser.add_argument("--device", choices=SIZES, default="cuda", help="(default: %(default)s)")
    args = parser.parse_args()
    figures = PARTS[args.part](SIZES[args.device])
    if rd.get_rank() == 0 and os.environ.get("RANK", "0") == "0":
        print(RESULT + json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
