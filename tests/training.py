"""Run the reference project's training inside a test's ranks, small and with comparable augmentation."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.utils.data import Dataset

import retrofit.distributed as rd
from retrofit.distributed.data.random_state import seed_everything

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


def first_epoch(arguments: list[str], checkpoint: Any = None) -> SimpleNamespace:
    """Return what `train.py` has built when its first epoch begins: args, state, folder, writer, and the loaders.

    Every rank calls it.
    """
    import train

    class Begun(Exception):
        """Ends the training there."""

    args = train.get_arguments([*SMALL, *arguments])
    rd.options.set_options(args)
    seed_everything(args.seed)
    get_dataloader = train.get_dataloader
    loaders: dict[str, Any] = {}
    built: dict[str, Any] = {}

    def keep_loader(args: Any, split: str) -> Any:
        loaders[f"{split}_loader"] = get_dataloader(args, split)
        return loaders[f"{split}_loader"]

    def begin(args: Any, state: Any, folder: Any, writer: Any, interruption: Any) -> None:
        built.update(args=args, state=state, folder=folder, writer=writer)
        raise Begun

    with (
        mock.patch.object(train, "get_dataloader", keep_loader),
        mock.patch.object(train, "train_one_epoch", begin),
        suppress(Begun),
    ):
        train.train(args, checkpoint)
    return SimpleNamespace(**built, **loaders)


def run_training(arguments: list[str], length: int | None = None, float64: bool = False) -> dict[str, Any]:
    """Train with `train.py`'s own functions and return losses per step, final weights (by name) and samples per step.

    `length` shortens the training set. `float64` trains in double precision, where float rounding cannot hide an
    error. A task for a rank pool: every rank calls it.
    """
    import train
    import utils

    losses: list[float] = []
    names: list[list[str]] = []

    states: list[Any] = []
    forward_backward, check_finite = train.forward_backward, train.check_finite

    def record_samples(args: Any, state: Any, window: Any) -> float:
        states[:] = [state]
        names.append([name for batch in window for name in batch["name"]])
        if float64:
            for batch in window:
                batch["image"] = batch["image"].double()
        return forward_backward(args, state, window)

    def record_loss(loss: float, *rest: Any) -> None:
        losses.append(loss)
        check_finite(loss, *rest)

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
            mock.patch.object(train, "forward_backward", record_samples),
            mock.patch.object(train, "check_finite", record_loss),
        ):
            status = train.train(args, None)
    (state,) = states
    return {
        "status": status,
        "losses": losses,
        "samples": names,
        "weights": {key: value.clone() for key, value in state.model.state_dict().items()},
        "lr": [group["lr"] for group in state.optimizer.param_groups],
    }
