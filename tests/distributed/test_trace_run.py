"""Traced runs of small scripts: what is recorded of data and steps, and what a controlled run makes comparable."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from retrofit.verify.evidence import Run, load_run
from retrofit.verify.trace.computation.steps.parameters import gpu_of
from retrofit.verify.trace.events import BackwardCall, EpochKept, InitialWeights, UncontrolledDraw

ROOT = Path(__file__).resolve().parents[2]
DRIVER = Path(__file__).with_name("trace_driver.py")

SCRIPT = """
import argparse, random
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset
import retrofit.distributed as rd

class Numbers(Dataset):
    def __len__(self):
        return 13
    def __getitem__(self, index):
        noise = torch.rand(4) + random.random()
        return torch.full((4,), float(index)) / 13 + noise, index % 3

class Stream(IterableDataset):
    def __iter__(self):
        for index in range(rd.get_rank(), 12, rd.get_world_size()):
            yield torch.full((4,), float(index)) / 13, index % 3

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--accum", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--iterable", action="store_true")
    parser.add_argument("--subset", action="store_true")
    rd.strategies.add_all_flags(parser)
    parser.set_defaults(batch="global")
    args = parser.parse_args()
    rd.setup_distributed(args)
    rd.random_state.seed_everything(3)
    model = rd.distribute_model(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if args.iterable:
        loader = DataLoader(Stream(), batch_size=rd.data.micro_batch(args.rows, args.accum))
    else:
        data = Subset(Numbers(), range(12, 0, -1)) if args.subset else Numbers()
        loader = DataLoader(data, args.rows, True, num_workers=args.workers, drop_last=True)
        loader = rd.distribute_loader(loader, seed=3, accum_steps=args.accum)
    rd.random_state.split_random_streams(3)
    for epoch in range(args.epochs):
        model.train()
        for number, (x, y) in enumerate(loader):
            noise = torch.randn(len(x), 4) * 0.1
            last = (number + 1) % args.accum == 0
            with rd.strategies.gradient_sync(model, last):
                loss = nn.functional.cross_entropy(model(x + noise), y) / args.accum
                loss.backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            for x, y in rd.share_batches(DataLoader(Numbers(), 5)):
                model(x)
    rd.cleanup_distributed()

main()
"""
FAILS = """
def inner():
    raise ValueError("no such thing")
try:
    inner()
except ValueError:
    raise SystemExit(1)
"""
# What `convert` writes next to a script, as far as the tracer looks into it.
RUNTIME_FILE = """
RETROFIT_RUNTIME = "1.0"
def weight_of(*inputs):
    return 1.5
def distribute(number):
    raise ValueError("no such thing")
"""
ONE_FILE = """
import torch
import multigpu as rd
weight = torch.ones((), requires_grad=True)
(2 * weight).backward()
rd.distribute(3)
"""


def described(root: Path, name: str, world_size: int = 1, argv: list[str] | None = None, **settings: Any) -> dict:
    folder = str(root / name)
    return {
        "folder": folder,
        "project": str(root),
        "script": settings.pop("script", "script.py"),
        "world_size": world_size,
        "argv": argv or [],
        "settings": settings,
    }


def replayed(root: Path, name: str, many: str, world_size: int, argv: list[str] | None = None) -> dict:
    traces = [str(root / many / f"rank{rank}.jsonl") for rank in range(world_size)]
    return described(root, name, 1, argv, controlled=True, replay=traces)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Every run of this module, made by one interpreter."""
    root = tmp_path_factory.mktemp("traced")
    (root / "script.py").write_text(SCRIPT)
    (root / "fails.py").write_text(FAILS)
    plans = [described(root, "plain"), described(root, "again"), described(root, "workers", 1, ["--workers", "2"])]
    plans += [described(root, "capped", 1, ["--epochs", "9", "--rows", "2"], steps=4)]
    plans += [described(root, "subset", 1, ["--subset"]), described(root, "fails", script="fails.py")]
    (root / "multigpu.py").write_text(RUNTIME_FILE)
    (root / "one_file.py").write_text(ONE_FILE)
    plans += [described(root, "one_file", script="one_file.py")]
    plans += [described(root, "stop", controlled=True, stop_before_first_step=True)]
    cases = {"two": (2, []), "three": (3, ["--rows", "3"]), "accum": (2, ["--accum", "2"])}
    cases["iterable"] = (2, ["--iterable"])
    stream = ["--iterable", "--rows", "1"]  # of 12 batches
    plans.append(described(root, "stream_with_few_left", 1, stream, steps=16, finds_lengths=True))
    plans.append(described(root, "stream_with_more_left", 1, stream, steps=6, finds_lengths=True))
    for name, (world_size, argv) in cases.items():
        plans.append(described(root, name, world_size, argv, controlled=True))
        plans.append(replayed(root, f"{name} on one", name, world_size, argv))
    (root / "runs.json").write_text(json.dumps(plans))
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(DRIVER), str(root / "runs.json")]
    result = subprocess.run(command, cwd=root, env=environ, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    loaded = {}
    for plan in plans:
        folder = Path(plan["folder"])
        statuses = json.loads((folder / "statuses.json").read_text())
        loaded[folder.name] = load_run(folder.name, folder, plan["world_size"], statuses=statuses)
    return loaded


def losses(run: Run) -> list[float]:
    """Return the loss of each step: the sum over micro batches, the mean over ranks."""
    per_rank = [[sum(step.losses) for step in rank.steps] for rank in run.ranks]
    return [sum(values) / len(values) for values in zip(*per_rank)]


def test_every_run_finishes(runs):
    assert {name: run.statuses for name, run in runs.items() if not run.finished} == {"fails": [1], "one_file": [1]}


def test_a_plain_run_draws_the_samples_of_its_sampler(runs):
    trace = runs["plain"].main
    first, _, second, _ = trace.iterations
    assert [iteration.train for iteration in trace.iterations] == [True, False, True, False]
    assert first.batches == first.order
    assert sorted(first.delivered) != first.delivered and len(set(first.delivered)) == 12  # 13 samples, batches of 4
    assert first.delivered != second.delivered
    assert [step.rows for step in trace.steps] == [4] * 6
    assert first.begin.samplers[:2] == ["BatchSampler", "RandomSampler"]


def test_evaluation_is_not_training(runs):
    evaluation = runs["plain"].main.iterations[1]
    assert evaluation.delivered == list(range(13)) and evaluation.end.is_training is False


def test_tracing_changes_nothing_from_run_to_run(runs):
    hashes = [[step.parameter_hash for step in runs[name].main.steps] for name in ("plain", "again")]
    assert hashes[0] == hashes[1] and len(set(hashes[0])) == 6


def test_workers_are_run_inside_the_process_and_noted(runs):
    assert runs["workers"].main.iterations[0].begin.num_workers == 2
    assert len(runs["workers"].main.steps) == 6


def test_a_short_run_ends_each_epoch_early_and_stops_after_the_last_evaluation(runs):
    trace = runs["capped"].main
    assert [iteration.train for iteration in trace.iterations] == [True, False, True, False]
    assert len(trace.steps) == 4 and len(trace.epochs[0].order) == 6
    assert trace.epochs[0].end.is_capped and trace.exit.status == 0


def test_a_stream_is_run_to_its_end_where_few_batches_are_left_of_it(runs):
    """Only at its end do ranks with more batches than others show."""
    few, more = runs["stream_with_few_left"].main, runs["stream_with_more_left"].main
    assert [len(epoch.batches) for epoch in few.epochs] == [12, 12]
    assert all(epoch.exhausted for epoch in few.epochs) and len(few.of(EpochKept)) == 2
    assert [len(epoch.batches) for epoch in more.epochs] == [3, 3]
    assert more.of(EpochKept) == []


def test_samples_of_a_subset_are_named_by_their_index_in_the_whole(runs):
    iteration = runs["subset"].main.iterations[0]
    assert iteration.members == frozenset(range(1, 13)) == frozenset(iteration.drawn)
    assert iteration.dataset == "Numbers:13:0"


def test_an_error_that_causes_an_exit_status_is_recorded(runs):
    error = runs["fails"].main.exit.error
    assert error.type == "ValueError" and error.where == "fails.py:3 in inner"


def test_a_runtime_in_one_file_records_batch_weights_and_is_not_blamed_for_an_error(runs):
    trace = runs["one_file"].main
    assert [event.loss for event in trace.of(BackwardCall)] == [3.0]
    assert trace.exit.error.where == "one_file.py:6 in <module>"


def test_a_run_that_stops_before_its_first_step_has_recorded_its_weights(runs):
    trace = runs["stop"].main
    assert trace.steps == [] and len(trace.first(InitialWeights).parameter_hashes) == 4


@pytest.mark.parametrize("name", ["two", "three", "accum", "iterable"])
def test_one_process_on_the_same_batches_has_the_same_losses_gradients_and_weights(runs, name):
    many, one = runs[name], runs[f"{name} on one"]
    assert len(losses(many)) == len(losses(one)) >= 3
    assert losses(many) == pytest.approx(losses(one), rel=1e-12)
    for rank in many.ranks:
        for there, here in zip(rank.steps, one.main.steps):
            assert there.gradient_norm == pytest.approx(here.gradient_norm, rel=1e-12)
            for a, b in zip(there.parameters, here.parameters):
                assert a == pytest.approx(b, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("name", ["two", "three", "accum"])
def test_the_batches_of_one_process_are_those_of_all_ranks(runs, name):
    for number, batch in enumerate(runs[f"{name} on one"].main.epochs[0].batches):
        assert batch == [sample for rank in runs[name].ranks for sample in rank.epochs[0].batches[number]]


def test_augmentation_of_a_sample_depends_on_the_epoch_alone(runs):
    probes = {json.dumps(rank.iterations[0].begin.probe) for rank in runs["two"].ranks}
    assert len(probes) == 1
    assert runs["two"].main.iterations[0].end.draws == ["python", "torch"]


def test_each_rank_has_its_own_random_stream(runs):
    streams = [rank.iterations[0].begin.streams["torch"] for rank in runs["two"].ranks]
    assert len(set(streams)) == 2


def test_noise_and_dropout_are_controlled_completely(runs):
    assert [rank.of(UncontrolledDraw) for rank in runs["two"].ranks] == [[], []]


def test_the_loop_of_a_controlled_run_is_in_float64(runs):
    assert {step.dtype for step in runs["two"].main.steps} == {"float64"}
    assert {step.dtype for step in runs["plain"].main.steps} == {"float32"}


@pytest.mark.parametrize(
    ("device", "uuid", "visible", "expected"),
    [
        ("cpu", None, None, None),
        ("cuda:1", "12ab", "0,1", "GPU 12ab"),
        ("cuda:1", None, None, "cuda:1 of CUDA_VISIBLE_DEVICES=all"),
        ("cuda:0", None, "3", "cuda:0 of CUDA_VISIBLE_DEVICES=3"),
    ],
)
def test_a_gpu_has_one_name_in_all_processes(monkeypatch, device, uuid, visible, expected):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=uuid))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_of([SimpleNamespace(device=torch.device(device))]) == expected
