"""The ten faults that multi-GPU retrofits of this kind of project have had, each on two real gloo ranks.

The fault is described above its test; the test trains, validates or saves with the project's own code.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from training import first_epoch, run_training

import retrofit.distributed as rd
from retrofit.distributed import get_rank, load_checkpoint, save_checkpoint
from retrofit.distributed.collectives import broadcast_object
from retrofit.distributed.data.random_state import seed_everything, split_random_streams
from segmentation.datasets.synthetic import DEFAULT_LENGTH


def start(*arguments: str, checkpoint: Any = None) -> Any:
    """Return train.py's training on this rank; everything it writes goes to a new folder common to the ranks."""
    logdir = broadcast_object(tempfile.mkdtemp())
    return first_epoch(["--batchsize", "4", "--logdir", logdir, *arguments], checkpoint)


def is_same_on_all_ranks(tensor: torch.Tensor) -> bool:
    gathered = [torch.empty_like(tensor) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(gathered, tensor)
    return all(torch.equal(gathered[0], other) for other in gathered)


# 1. Weights were restored with `model = restore(model.module, ...)`: the wrapper was gone and every rank went its own
#    way, silently.
def train_after_restoring() -> tuple[bool, bool]:
    import train

    started = start()
    args, state = started.args, started.state
    path = Path(args.logdir) / "weights.pt"
    save_checkpoint(state.model, state.optimizer, 0, path)
    load_checkpoint(state.model, state.optimizer, path)
    state.model.train()
    for window in ([batch] for batch, _ in zip(started.train_loader, range(2))):
        train.forward_backward(args, state, window)
        train.optimizer_step(args, state)
    weight = state.model.backbone.conv1.weight.detach()
    return isinstance(state.model, DistributedDataParallel), is_same_on_all_ranks(weight)


def test_1_restoring_weights_keeps_the_ranks_together(ranks: Any) -> None:
    assert ranks(2).run(train_after_restoring) == [(True, True), (True, True)]


# 2. Then `model.module.state_dict()` failed at the first save. Saving must work whatever is wrapped, prefix-free.
def save_wrapped_and_plain() -> list[str]:
    started = start()
    folder, model = Path(started.args.logdir), started.state.model
    save_checkpoint(model, None, 0, folder / "wrapped.pt")
    save_checkpoint(model.module, None, 0, folder / "plain.pt")
    wrapped, plain = (torch.load(folder / f"{name}.pt", weights_only=True)["model"] for name in ("wrapped", "plain"))
    assert wrapped.keys() == plain.keys() == model.module.state_dict().keys()
    return list(wrapped)[:1]


def test_2_saving_works_with_and_without_a_wrapper(ranks: Any) -> None:
    assert ranks(2).run(save_wrapped_and_plain) == [["backbone.conv1.weight"]] * 2


# 3. Ranks other than 0 iterated a plain loader and crashed on `bar.set_postfix` at step 0.
def train_and_capture() -> tuple[int, int, str]:
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        result = run_training(["--batchsize", "4"], 24)
    return result["status"], len(result["losses"]), errors.getvalue()


def test_3_progress_is_shown_by_rank_0_and_harmless_elsewhere(ranks: Any) -> None:
    (status_0, steps_0, shown_0), (status_1, steps_1, shown_1) = ranks(2).run(train_and_capture)
    assert (status_0, steps_0) == (status_1, steps_1) == (0, 3)
    assert "img/s" in shown_0
    assert shown_1 == ""


# 4. Validation ran on a shuffled, padded shard and the confusion matrix was never reduced.
def validate_odd_set() -> tuple[int, list[list[int]]]:
    import train

    started = start()
    started.val_loader.dataset.length = 23  # two ranks get 12 and 11
    confusion, *_ = train.evaluate(started.args, started.state.model, started.val_loader)
    return confusion.num_samples, confusion.matrix.tolist()


def test_4_validation_is_exact_on_an_odd_set(ranks: Any) -> None:
    ((num_samples, matrix),) = ranks(1).run(validate_odd_set)
    assert num_samples == 23
    assert ranks(2).run(validate_odd_set) == [(23, matrix)] * 2
    assert ranks(3).run(validate_odd_set) == [(23, matrix)] * 3


# 5. `--l_lorm 0` left the lorm parameters without gradient: DDP stopped at step 2.
def test_5_a_lorm_model_trains_with_its_loss_switched_off(ranks: Any) -> None:
    arguments = ["--model_type", "deeplabv3p_lorm", "--l_lorm", "0", "--batchsize", "4"]
    for result in ranks(2).run(run_training, arguments, 32):
        assert len(result["losses"]) == 4


# 6. A second entry point (`forward_eval`) was called on the wrapped model: DDP never saw it.
class TwoEntries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)

    def forward_eval(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * 2


def call_second_entry() -> tuple[str, bool]:
    from retrofit.distributed import DDPWrapper

    model, x = DDPWrapper(TwoEntries()), torch.rand(3, 2)
    with pytest.raises(RuntimeError) as refused:
        model.forward_eval(x).sum().backward()
    with torch.no_grad():
        return str(refused.value), torch.equal(model.forward_eval(x), 2 * model(x))


def test_6_a_method_that_skips_ddp_is_refused_in_training(ranks: Any) -> None:
    for message, works_in_evaluation in ranks(2).run(call_second_entry):
        assert "would not be synchronised" in message
        assert "rd.distribute_model(model, methods=" in message
        assert works_in_evaluation


# 7. The loss edited the batch in place (`cam[cam == 255] = 0`), so a second look saw other data.
def train_twice_on_one_batch() -> bool:
    import train

    started = start("--model_type", "deeplabv3p_lorm", "--dataset", "synthetic_scribble")
    batch = next(iter(started.train_loader))
    before = {key: value.clone() for key, value in batch.items() if isinstance(value, torch.Tensor)}
    train.forward_backward(started.args, started.state, [batch])
    return len(before) == 3 and all(torch.equal(batch[key], value) for key, value in before.items())


def test_7_a_step_does_not_change_its_batch(ranks: Any) -> None:
    assert ranks(2).run(train_twice_on_one_batch) == [True, True]


# 8. GradScaler was made anew in every epoch, and the optimizer was saved but nothing could be resumed from it.
def scale_over_epochs_and_resume() -> dict[str, Any]:
    import train

    def real_scaler(amp: str) -> Any:
        # fp16 needs a GPU; the scaler itself is the same on the CPU, and here it doubles its scale every step.
        return torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=1)

    with mock.patch.object(train, "gradient_scaler", real_scaler), mock.patch.dict(DEFAULT_LENGTH, train=16):
        started = start("--epochs", "2")
        state = started.state
        for _ in range(2):
            train.train_one_epoch(started.args, state, started.folder, started.writer, rd.job.Interruption())
        path = train.save_state(started.args, state, started.folder, started.writer)
        content = {**rd.checkpoint.read_checkpoint(path), "path": path, "is_newest": False}
        resumed = start("--epochs", "3", checkpoint=content).state
    momenta, restored = (
        [of_parameter["momentum_buffer"] for of_parameter in one.optimizer.state_dict()["state"].values()]
        for one in (state, resumed)
    )
    return {
        "steps": state.epochs.global_step,
        "scale": state.scaler.get_scale(),
        "resumed_scale": resumed.scaler.get_scale(),
        "same_momentum": all(map(torch.equal, momenta, restored)) and len(momenta) > 50,
    }


@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="a GradScaler for the CPU needs torch >= 2.3")
def test_8_the_scaler_is_kept_across_epochs_and_resume(ranks: Any) -> None:
    for result in ranks(2).run(scale_over_epochs_and_resume):
        assert result["steps"] == 4
        assert result["scale"] == result["resumed_scale"] == 2.0 * 2**4
        assert result["same_momentum"]


# 9. The learning rate was multiplied by the world size although the total batch had stayed the same.
def peak_rate(*arguments: str) -> tuple[int, float]:
    state = start("--lr", "0.001", "--batchsize", "16", *arguments).state
    return state.epochs.global_batch, state.optimizer.param_groups[0]["initial_lr"]


@pytest.mark.parametrize(
    ("arguments", "global_batch", "lr"),
    [
        (("--batch", "global"), 16, 0.001),
        (("--batch", "global", "--accum_steps", "2"), 16, 0.001),
        ((), 32, 0.002),
        (("--lr_scale", "sqrt"), 32, 0.001 * 2**0.5),
        (("--lr_scale", "none"), 32, 0.001),
    ],
)
def test_9_the_rate_follows_the_global_batch(
    ranks: Any, arguments: tuple[str, ...], global_batch: int, lr: float
) -> None:
    for seen_batch, seen_lr in ranks(2).run(peak_rate, *arguments):
        assert seen_batch == global_batch
        assert seen_lr == pytest.approx(lr, rel=1e-12)


# 10. The same seed on every rank gave the loaders of all ranks the same augmentation.
class RandomNumbers(Dataset):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(2, dtype=torch.float64)


def draw_augmentation(num_workers: int) -> list[list[float]]:
    from retrofit.distributed.data.sharding import loader_workers, shard_loader

    seed_everything(1000)
    loader = DataLoader(RandomNumbers(), batch_size=2, shuffle=True, **loader_workers(num_workers))
    loader = shard_loader(loader, seed=1000)
    split_random_streams(1000)
    return [row for batch in loader for row in batch.tolist()]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_10_ranks_augment_differently_and_reproducibly(ranks: Any, num_workers: int) -> None:
    first, second = ranks(2).run(draw_augmentation, num_workers)
    drawn = [value for rows in (first, second) for row in rows for value in row]
    assert len(set(drawn)) == len(drawn) == 32
    assert ranks(2).run(draw_augmentation, num_workers) == [first, second]


def test_the_project_splits_its_random_streams(ranks: Any) -> None:
    first, second = ranks(2).run(first_augmented_image)
    assert not torch.equal(first, second)


def first_augmented_image() -> torch.Tensor:
    train_loader = start().train_loader
    assert get_rank() in (0, 1)
    return train_loader.dataset[0]["image"]
