"""N ranks train the same model as one process with the same global batch; one process is the original program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from image_folder import folder_options, make_images
from torch import nn
from training import run_training
from verify.projects.launch import Launcher

from retrofit.distributed import DDPWrapper, get_rank, get_world_size
from retrofit.distributed.collectives import reduce_sum
from retrofit.distributed.loss import rank_share
from retrofit.distributed.strategies.select import gradient_sync

REPO = Path(__file__).resolve().parent.parent
NUM_STEPS = 12
SCRIBBLES = ["--dataset", "synthetic_scribble", "--batch", "global", "--batchsize", "6", "--lr", "0.005"]


def largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max((one[key].double() - other[key].double()).abs().max().item() for key in one)


@pytest.fixture(scope="module")
def one_process(ranks: Any) -> dict[str, Any]:
    """A few steps of a lorm model on scribbles (valid pixels uneven over images), in a group of one, in float64."""
    arguments = [*SCRIBBLES, "--model_type", "deeplabv3p_lorm", "--sync_bn"]
    return ranks(1).run(run_training, arguments, 6 * NUM_STEPS, True, timeout_s=600)[0]


@pytest.mark.parametrize("world_size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_ranks_train_the_model_of_one_process(ranks: Any, one_process: dict[str, Any], world_size: int) -> None:
    # In float64: from random weights this network multiplies a rounding error by about ten at every step, so that
    # in float32 even a reordered sum of one process ends elsewhere; in float64 only a real difference can show.
    arguments = [*SCRIBBLES, "--model_type", "deeplabv3p_lorm", "--sync_bn"]
    results = ranks(world_size).run(run_training, arguments, 6 * NUM_STEPS, True, timeout_s=600)
    assert len(one_process["losses"]) == NUM_STEPS
    for result in results:
        assert result["losses"] == pytest.approx(one_process["losses"], abs=1e-9)
        assert largest_difference(result["weights"], one_process["weights"]) < 1e-9
    for step in range(NUM_STEPS):
        drawn = [name for result in results for name in result["samples"][step]]
        assert sorted(drawn) == sorted(one_process["samples"][step])


def test_three_ranks_train_on_an_odd_dataset_and_end_bit_equal(ranks: Any) -> None:
    arguments = ["--batchsize", "3", "--model_type", "deeplabv3p"]
    results = ranks(3).run(run_training, arguments, 47)
    assert [result["status"] for result in results] == [0, 0, 0]
    seen = [name for result in results for step in result["samples"] for name in step]
    assert len(seen) == len(set(seen)) == 47 // 9 * 9
    for result in results[1:]:
        assert result["losses"] == results[0]["losses"]
        # Parameters; BatchNorm statistics are each rank's own until they are broadcast.
        names = [name for name in result["weights"] if "running_" not in name]
        assert len(names) > 50
        assert all(torch.equal(result["weights"][name], results[0]["weights"][name]) for name in names)


def small_model_losses(num_steps: int, micro_batch: int, accum_steps: int) -> dict[str, Any]:
    """Train a model without BatchNorm in float32 on this rank's share of fixed batches; a task for a rank pool."""
    torch.manual_seed(0)
    model = DDPWrapper(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(num_steps):
        images = torch.rand(12, 3, 8, 8, generator=generator)
        labels = torch.randint(0, 4, (12, 8, 8), generator=generator)
        for i, label in enumerate(labels):  # valid pixels from 1 to 64 per image: uneven over ranks
            label.view(-1)[1 + 5 * i :] = 255
        shares = list(range(12))[get_rank() :: get_world_size()]
        windows = [shares[i : i + micro_batch] for i in range(0, len(shares), micro_batch)]
        (valid,) = reduce_sum([sum(int((labels[window] != 255).sum()) for window in windows)])
        share = 0.0
        for number, window in enumerate(windows, start=1):
            with gradient_sync(model, enabled=number == len(windows)):
                local_sum = nn.functional.cross_entropy(
                    model(images[window]), labels[window], ignore_index=255, reduction="sum"
                )
                loss = local_sum / rank_share(valid)
                loss.backward()
            share += loss.item() / get_world_size()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(reduce_sum([share])[0])
    assert len(windows) == accum_steps
    return {"losses": losses, "weights": model.state_dict()}


@pytest.mark.parametrize(
    ("world_size", "micro_batch", "accum_steps"), [(1, 3, 4), (2, 6, 1), (2, 3, 2), (3, 4, 1), (3, 1, 4)]
)
def test_float32_training_agrees_to_1e_5(ranks: Any, world_size: int, micro_batch: int, accum_steps: int) -> None:
    whole = ranks(1).run(small_model_losses, NUM_STEPS, 12, 1)[0]
    for result in ranks(world_size).run(small_model_losses, NUM_STEPS, micro_batch, accum_steps):
        assert result["losses"] == pytest.approx(whole["losses"], abs=1e-5)
        assert largest_difference(result["weights"], whole["weights"]) < 1e-5


def reductions_per_window(accum_steps: int) -> int:
    """Count DDP's gradient reductions in one step; a task for a rank pool."""
    model = DDPWrapper(nn.Linear(3, 1))
    calls = []

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # torch refuses annotations that are strings
        calls.append(bucket.buffer().numel())
        future: torch.futures.Future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    model.register_comm_hook(None, hook)
    for number in range(1, accum_steps + 1):
        with gradient_sync(model, enabled=number == accum_steps):
            model(torch.rand(2, 3)).sum().backward()
    return len(calls)


def test_accumulation_communicates_once_per_step(ranks: Any) -> None:
    assert ranks(2).run(reductions_per_window, 1) == [1, 1]
    assert ranks(2).run(reductions_per_window, 4) == [1, 1]


@pytest.mark.parametrize(
    "extra",
    [
        [
            "--model_type",
            "deeplabv3p_lorm",
            "--ema_decay",
            "0.9",
            "--clip_grad",
            "1",
        ],
        pytest.param(
            [
                "--model_type",
                "deeplabv2",
                "--label_smooth",
                "0.1",
                "--amp",
                "bf16",
                "--sched",
                "poly",
                "--channels_last",
            ],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["lorm", "bf16"],
)
def test_one_process_is_the_original_program_bit_for_bit(tmp_path: Path, launcher: Launcher, extra: list[str]) -> None:
    arguments = ["--layers", "18", "--crop_size", "32", "--epochs", "1", "--batchsize", "8", "--workers", "2", *extra]
    arguments += folder_options(make_images(tmp_path / "data", 32))
    for script, folder in (("tests/single_gpu/train.py", "original"), ("train.py", "retrofitted")):
        ended = launcher.run(REPO, str(REPO / script), [*arguments, "--logdir", str(tmp_path / folder)])
        assert ended["statuses"] == [0], ended["outputs"]
    (original,) = (tmp_path / "original").glob("*/epoch_1.pt")
    (retrofitted,) = (tmp_path / "retrofitted").glob("*/checkpoint_*.pt")
    before, after = (torch.load(path, weights_only=True) for path in (original, retrofitted))
    assert before["model"].keys() == after["model"].keys()
    assert all(torch.equal(before["model"][key], after["model"][key]) for key in before["model"])
    assert before["best_miou"] == after["best_miou"]
    old, new = (state["optimizer"]["state"] for state in (before, after))
    assert all(torch.equal(old[key]["momentum_buffer"], new[key]["momentum_buffer"]) for key in old)
