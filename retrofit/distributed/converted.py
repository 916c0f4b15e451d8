"""What `retrofit convert` puts into a script: the runtime's pieces, each in one call.

They follow the options that `setup_distributed` was given (`--batch`, `--lr_scale`), and are the identity outside a
group.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from .batch_weight import length_in_use, weigh_batches, weigh_gradients
from .data import ShardedSampler, shard_loader
from .data_parallel import KEEPS_PREFIX, OneDevice
from .ddp import DDPWrapper
from .environment import read_environment
from .parallel import wrap_model
from .process_group import get_option, get_world_size, is_distributed
from .random_state import get_rng_state, set_rng_state, split_random_streams
from .reduce import broadcast_object
from .scaling import plan_batch, scale_lr
from .sync_batchnorm import convert_sync_batchnorm

BATCHNORM_TWIN = "RETROFIT_BATCHNORM"
VISIBLE = "CUDA_VISIBLE_DEVICES"

_calls: Counter[tuple[str, int]] = Counter()  # of distribute_loader, by the place in the script


def share_random_state() -> None:
    """Give every rank rank 0's random streams, for a script that sets no seed: the ranks then split data alike.

    Collective: every rank.
    """
    if is_distributed():
        set_rng_state(broadcast_object(get_rng_state()))


def distribute_model(model: nn.Module) -> nn.Module:
    """Return `model` with gradients averaged and BatchNorm statistics taken over all samples of all ranks.

    Move it to its device first. In an uneven last batch of a loader of `distribute_loader` the ranks count by their
    numbers of samples. RETROFIT_BATCHNORM=local leaves every rank its own BatchNorm statistics, which is faster and
    another training; `model.eval()` then gives all ranks those of rank 0, and every rank must call it. Parameters that
    no loss depends on, or not every loss, are found and left as in one process. None comes back as None. Collective:
    every rank. Raises ValueError for another value of that variable, RuntimeError before setup_distributed.
    """
    if model is None:  # a part that the options leave out: `encoder = Encoder() if args.vae else None`
        return model
    choice = os.environ.get(BATCHNORM_TWIN) or "sync"
    _require_group("distribute_model")
    if isinstance(model, DDPWrapper):
        return model
    strategy = get_option("strategy")
    if strategy not in ("auto", "single", "ddp"):
        raise ValueError(
            f"RETROFIT_STRATEGY={strategy}: a converted script trains with ddp; for another strategy call "
            "rd.wrap_model, and rd.save_checkpoint on every rank"
        )
    if choice not in ("sync", "local"):
        raise ValueError(f"{BATCHNORM_TWIN}={choice!r} is not valid; use one of: sync, local, or unset it")
    if isinstance(model, nn.DataParallel) and not isinstance(model, OneDevice):
        return model  # one process drives all GPUs, as before
    module = model.module if isinstance(model, OneDevice) else model
    wrapped = wrap_model(convert_sync_batchnorm(module) if choice == "sync" else module)
    if wrapped is module:
        return model
    if isinstance(wrapped, DDPWrapper):
        wrapped.__dict__[KEEPS_PREFIX] = isinstance(model, OneDevice)
        # With statistics of their own, the ranks would evaluate different models.
        wrapped.__dict__["broadcasts_before_evaluation"] = choice == "local"
        weigh_gradients(wrapped)
        wrapped.look_for_unused()
    return wrapped


def distribute_loader(loader: DataLoader) -> DataLoader:
    """Return a training loader over this rank's shard of `loader`'s samples.

    The loader's batch size counts samples per rank, or over all ranks with `--batch global`. From its first
    iteration on every rank draws random numbers of its own, so that no two ranks augment alike; what a script draws
    before (weights, a fixed order of the pixels) is the same on all. A loader that is made again in each epoch, by the
    same line, has a new order each time. Collective: every rank. Raises what
    `shard_loader` and `plan_batch` raise, and RuntimeError before setup_distributed.
    """
    _require_group("distribute_loader")
    if not is_distributed() or loader.batch_size is None:
        return shard_loader(loader)
    seed = broadcast_object(torch.initial_seed()) % 2**31  # or the shards of an unseeded script would overlap
    sharded = shard_loader(loader, seed=seed, batch_size=micro_batch(loader.batch_size))
    if isinstance(sharded.sampler, ShardedSampler):
        sharded.sampler.set_epoch(_times_called_at(sys._getframe(1)))  # each epoch may make a loader of its own
    return weigh_batches(sharded, at_first=partial(split_random_streams, seed))


def _times_called_at(frame: FrameType) -> int:
    """Return how often this was asked before for the same line of the script."""
    place = frame.f_code.co_filename, frame.f_lineno
    _calls[place] += 1
    return _calls[place] - 1


def set_epoch(loader: DataLoader, epoch: int) -> None:
    """Choose the order of a training loader's next iteration by the number of the epoch, for runs that are continued.

    A loader whose sampler has no `set_epoch`, one that is not sharded, is left alone.
    """
    if hasattr(loader.sampler, "set_epoch"):
        loader.sampler.set_epoch(epoch)


def micro_batch(batch_size: int) -> int:
    """Return the number of samples in one rank's batch: `batch_size`, or its share of it with `--batch global`.

    Raises ValueError when a global batch cannot be shared out evenly.
    """
    return plan_batch(batch_size, get_world_size(), batch=get_option("batch")).micro_batch


def own_batch_size(batch_size: int) -> int:
    """Return how many samples this rank has of the training batch in use, for what is shaped by the batch size.

    That is `micro_batch(batch_size)`, and fewer in an uneven last batch, which one process may never have had. Raises
    ValueError when a global batch cannot be split evenly.
    """
    return batch_size if get_world_size() == 1 else length_in_use(micro_batch(batch_size))


def samples_per_step(batch_size: int) -> int:
    """Return how many samples all ranks take in a step, for a schedule that counts its steps by them.

    `len(samples) // samples_per_step(batch_size)` is the number of steps in an epoch. Raises RuntimeError before
    setup_distributed.
    """
    _require_group("samples_per_step")
    return batch_size if get_option("batch") == "global" else batch_size * get_world_size()


def visible_gpus(chosen: str) -> str:
    """Return what a script sets CUDA_VISIBLE_DEVICES to: its own choice, where that is enough for all processes here.

    Started by a launcher with more processes on this machine than `chosen` names GPUs, the choice is the launcher's.
    """
    place = read_environment(os.environ)
    named = [name for name in str(chosen).split(",") if name.strip() not in ("", "-1")]
    if place.launcher == "none" or not named or len(named) >= place.local_world_size:
        return chosen
    if place.local_rank == 0:
        print(
            f"notice: the script's choice of GPUs ({chosen}) is not enough for {place.local_world_size} processes; "
            "CUDA_VISIBLE_DEVICES, set where the training is started, decides"
        )
    return os.environ.get(VISIBLE) or ",".join(str(index) for index in range(place.local_world_size))


def scaled_lr(lr: Any) -> Any:
    """Return the learning rate for the batch of all ranks, for one that was chosen for a single process.

    `lr`: a number, or a list or tuple of them, one for each group of parameters. With `--batch global` the batch is the
    same and so is the rate; else it follows `--lr_scale` (see `scale_lr`).
    """
    world_size = get_world_size()
    if get_option("batch") == "global" or world_size == 1:
        return lr
    if isinstance(lr, (list, tuple)):
        return type(lr)(scaled_lr(rate) for rate in lr)
    return scale_lr(lr, world_size, 1, get_option("lr_scale"))


def scale_optimizer(optimizer: Optimizer) -> Optimizer:
    """Return `optimizer` with every learning rate in it, also that of groups to come, put through `scaled_lr`.

    For one whose rate is the library's default, or stands in `**options`.
    """
    for group in (optimizer.defaults, *optimizer.param_groups):
        if isinstance(group.get("lr"), (float, int, torch.Tensor)):  # Adafactor finds its own, a default may be missing
            group["lr"] = scaled_lr(group["lr"])
    return optimizer


def _require_group(caller: str) -> None:
    """Raise where a launcher has started several processes that are not one job: each would train for itself."""
    world_size = os.environ.get("WORLD_SIZE", "1")
    if world_size != "1" and not is_distributed():
        raise RuntimeError(
            f"{caller} was called outside the process group, in one of {world_size} processes; call "
            "setup_distributed() in front of it"
        )
