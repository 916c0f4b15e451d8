"""Measure the data loader: images/s per number of workers, and the share of time of each transform.

python benchmarks/loader.py
python benchmarks/loader.py --dataset camvid --dataset_path CamVid --crop_size 180
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torchvision
from torch.utils.data import DataLoader

from segmentation.datasets import DATASETS, SegmentationDataset, build_dataset, default_num_classes


def build_parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "--dataset", choices=DATASETS, help="measure this one too (default: only synthetic, at its own size)"
    )
    parser.add_argument("--dataset_path", help="folder of --dataset; not for the synthetic ones")
    parser.add_argument("--numclasses", type=int, help="classes of --dataset (default: its own number)")
    parser.add_argument("--crop_size", type=int, default=0, help="pixels, 0 = the dataset's own (default 0)")
    parser.add_argument("--batchsize", type=int, default=16, help="images per batch (default 16)")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2], help="worker counts (default 0 1 2)")
    parser.add_argument("--images", type=int, default=640, help="images per measurement (default 640)")
    parser.add_argument("--repeats", type=int, default=5, help="measurements, the median counts (default 5)")
    return parser


def print_environment() -> None:
    """Print what the figures depend on."""
    print(f"python {platform.python_version()} | torch {torch.__version__} | torchvision {torchvision.__version__}")
    print(f"{platform.machine()} | {os.cpu_count()} CPUs | threads per process: {torch.get_num_threads()}")


def measure_loader(
    dataset: SegmentationDataset, workers: int, batchsize: int, images: int, repeats: int
) -> list[float]:
    """Return images/s of `repeats` runs of about `images` images each; worker start-up excluded."""
    batches = max(1, images // batchsize)
    sampler = torch.randint(len(dataset), (batches * batchsize * (repeats + 1),)).tolist()
    loader = DataLoader(dataset, batch_size=batchsize, sampler=sampler, num_workers=workers)
    stream = iter(loader)
    for _ in range(batches):  # warm-up: worker start, file cache, first allocations
        next(stream)
    rates = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(batches):
            next(stream)
        rates.append(batches * batchsize / (time.perf_counter() - start))
    return rates


def measure_steps(dataset: SegmentationDataset, images: int, repeats: int) -> dict[str, float]:
    """Return the median time in ms per image of loading and of each transform, in order, without workers."""
    steps: list[tuple[str, Callable[..., Any]]] = [(type(step).__name__, step) for step in dataset.transform.transforms]
    runs: dict[str, list[float]] = {name: [] for name in ["load", *(name for name, _ in steps)]}
    for _ in range(repeats):
        totals = dict.fromkeys(runs, 0.0)
        for index in torch.randint(len(dataset), (images,)).tolist():
            start = time.perf_counter()
            sample = dataset.load(index)
            ends = [time.perf_counter()]
            for _, step in steps:
                sample = step(*sample)
                ends.append(time.perf_counter())
            for name, begin, end in zip(runs, [start, *ends], ends):
                totals[name] += end - begin
        for name, total in totals.items():
            runs[name].append(1e3 * total / images)
    return {name: statistics.median(values) for name, values in runs.items()}


def report(name: str, dataset: SegmentationDataset, args: argparse.Namespace) -> None:
    """Measure one training split and print both tables."""
    height, width = dataset.load(0)[0].shape[1:]
    print(
        f"\n{name}: {len(dataset)} training images (the first {width}x{height}), crop {dataset.crop_size}, "
        f"batch {args.batchsize}, median of {args.repeats}"
    )
    print("  workers  images/s  (lowest - highest)")
    for workers in args.workers:
        rates = measure_loader(dataset, workers, args.batchsize, args.images, args.repeats)
        print(f"  {workers:7d}  {statistics.median(rates):8.0f}  ({min(rates):.0f} - {max(rates):.0f})")
    times = measure_steps(dataset, max(1, args.images // 4), args.repeats)
    total = sum(times.values())
    print("  step                  ms/image  share")
    for step, value in times.items():
        print(f"  {step:20s}  {value:8.3f}  {value / total:5.0%}")


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if min(args.batchsize, args.images, args.repeats) < 1 or min(args.workers) < 0:
        parser.error("--batchsize, --images and --repeats must be at least 1, --workers at least 0")
    names = ["synthetic"] if args.dataset in (None, "synthetic") else ["synthetic", args.dataset]
    datasets = {}
    for name in names:
        asked = name == args.dataset
        try:
            num_classes = (args.numclasses if asked else None) or default_num_classes(name)
            crop_size = args.crop_size if asked else 0
            datasets[name] = build_dataset(name, args.dataset_path, "train", num_classes, crop_size)
        except (ValueError, FileNotFoundError) as error:
            print(f"{parser.prog}: error: {error}", file=sys.stderr)
            return 2
    torch.manual_seed(0)
    torch.set_num_threads(1)  # as in a loader process
    print_environment()
    for name, dataset in datasets.items():
        report(name, dataset, args)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
