"""Run the reference project's training inside a test's ranks, small and with comparable augmentation."""

from __future__ import annotations

import tempfile
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.utils.data import Dataset

import retrofit.distributed as rd
from retrofit.distributed.random_state import seed_everything

SMALL = ["--layers", "18", "--crop_size", "32", "--epochs", "1", "--workers", "0"]


class SameAugmentation(Dataset):
    """Augments sample i the same way wherever it is drawn: what a rank's random stream decides is not under test."""

    def __init__(self, dataset: Any, length: int | None) -> None:
        self.dataset = dataset
        self.length = length or len(dataset)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["dataset"], name)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(index)
            return self.dataset[index]


def run_training(arguments: list[str], length: int | None = None, float64: bool = False) -> dict[str, Any]:
    """Train with `train.py`'s own Trainer and return losses per step, final weights (by name) and samples per step.

    `length` shortens the training set. `float64` trains in double precision, where float rounding cannot hide an
    error. A task for a rank pool: every rank calls it.
    """
    import train
    import utils

    losses: list[float] = []
    names: list[list[str]] = []

    class Recorder(train.Trainer):
        def forward_backward(self, window: Any) -> float:
            names.append([name for batch in window for name in batch["name"]])
            if float64:
                for batch in window:
                    batch["image"] = batch["image"].double()
            return super().forward_backward(window)

        def check_finite(self, loss: float) -> None:
            losses.append(loss)
            super().check_finite(loss)

    build_dataset, build_model = utils.build_dataset, utils.build_model

    def small_dataset(name: str, root: str, split: str, *rest: Any) -> Any:
        dataset = build_dataset(name, root, split, *rest)
        return SameAugmentation(dataset, length) if split == "train" else dataset

    def double_build_model(*args: Any) -> nn.Module:
        return build_model(*args).double()

    with tempfile.TemporaryDirectory() as logdir:
        args = train.get_arguments([*SMALL, "--val_epoch", "1000", "--logdir", logdir, *arguments])
        rd.options.set_options(args)
        seed_everything(args.seed)
        with (
            mock.patch.object(utils, "build_dataset", small_dataset),
            mock.patch.object(utils, "build_model", double_build_model if float64 else build_model),
        ):
            trainer = Recorder(args)
            status = trainer.train()
    return {
        "status": status,
        "losses": losses,
        "samples": names,
        "weights": {key: value.clone() for key, value in trainer.model.state_dict().items()},
        "lr": [group["lr"] for group in trainer.optimizer.param_groups],
    }
