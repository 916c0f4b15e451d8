"""Training loaders over all ranks, and the batch sizes that follow from them; the identity outside a group."""

from __future__ import annotations

import sys
from collections import Counter
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from ..collectives import broadcast_object
from ..process.options import get_option, set_options
from ..process.process_group import get_world_size, require_group
from .batch import DrawnAhead, batches_in_use, first_sizes, training_batches
from .batches_in_turn import BatchesInTurn
from .sharding import DistributedLoader, ShardedSampler, shard_loader, size_of_batches
from .streams import shard_stream, stream_batches
from .wrapped import loader_places, require_not_started, wrapped_loaders

DRAWS_FROM_SAMPLER = frozenset({"__iter__", "_get_iterator", "sampler", "batch_sampler"})  # names in a class
_times_called: Counter[tuple[str, int]] = Counter()  # distribute_loader, by the line of the script


def distribute_loader(
    loader: Any, *, seed: int | None = None, accum_steps: int = 1, keep_batches: bool = False, pad_whole: bool = False
) -> Any:
    """Return a training loader over this rank's shard of `loader`'s samples.

    Its batches have `micro_batch(loader.batch_size, accum_steps)` samples; its `batch_size` is that of `loader`. From
    its first iteration on each rank draws random numbers of its own: no two augment the same way. A loader that the
    same line creates again has a new order. `seed` is rank 0's by default. Of an object that wraps a DataLoader that
    one is sharded; of another iterable of batches each rank takes whole ones (`BatchesInTurn`). With `--batch global`,
    `keep_batches` lets every rank compute each batch of the script's own making whole, and rank 0's counts;
    `pad_whole` lets each rank make whole batches and take its rows, padded as those of the others. Collective: every
    rank. Raises what `shard_loader` and `micro_batch` raise, RuntimeError before setup_distributed, TypeError for what
    gives no batches, or several DataLoaders.
    """
    require_group("distribute_loader")
    line = (caller := sys._getframe(1)).f_code.co_filename, caller.f_lineno
    is_whole = pad_whole and get_option("batch") == "global" and get_world_size() > 1 and not is_shard(loader)
    if isinstance(loader, DataLoader) and not _draws_by_itself(loader) and not is_whole:
        return _distributed(loader, seed, accum_steps, line, keep_batches)
    if get_world_size() == 1 or isinstance(loader, BatchesInTurn):
        return loader
    places = [] if is_whole else wrapped_loaders(loader)
    for holder, name in places:
        object.__setattr__(holder, name, _distributed(getattr(holder, name), seed, accum_steps, line, keep_batches))
    return loader if places else _given_in_turn(loader, seed, line, keep_batches)


def _distributed(loader: DataLoader, seed: int | None, accum_steps: int, line: Any, keeps: bool) -> DataLoader:
    if is_shard(loader):
        return loader
    if get_world_size() > 1:
        require_not_started(loader)
    seed = _common_seed(seed)
    whole = size_of_batches(loader)
    size = None if whole is None else micro_batch(whole, accum_steps)
    if isinstance(loader.dataset, IterableDataset):
        if get_world_size() == 1:
            return loader
        iterate = partial(stream_batches, ahead=DrawnAhead())
        return DistributedLoader(shard_stream(loader, seed, size), iterate)  # type: ignore[return-value]
    sharded = shard_loader(loader, seed=seed, batch_size=size, accum_steps=accum_steps)
    if not isinstance(sharded.sampler, ShardedSampler):
        return sharded
    sharded.sampler.kept = keeps
    sharded.sampler.set_epoch(_times_called[line])
    _times_called[line] += 1
    ahead = DrawnAhead(sharded.sampler.is_even)
    return DistributedLoader(sharded, partial(training_batches, ahead=ahead))  # type: ignore[return-value]


def _draws_by_itself(loader: DataLoader) -> bool:
    """Return whether the class of a loader gives batches of its own, past the sampler that it may have."""
    kinds = [kind for kind in type(loader).__mro__ if issubclass(kind, DataLoader) and kind is not DataLoader]
    codes = (getattr(part, "__code__", None) for kind in kinds for part in vars(kind).values())
    names = {name for code in codes if code for name in code.co_names}
    return any("__iter__" in vars(kind) for kind in kinds) and names.isdisjoint(DRAWS_FROM_SAMPLER)


def _given_in_turn(batches: Any, seed: int | None, line: tuple[str, int], keeps: bool) -> BatchesInTurn:
    shared = BatchesInTurn(batches, _common_seed(seed), keeps)
    shared.set_epoch(_times_called[line])
    _times_called[line] += 1
    return shared


def _common_seed(seed: int | None) -> int:
    """Return the seed, or rank 0's: or the shards of an unseeded script would overlap."""
    return broadcast_object(torch.initial_seed()) % 2**31 if seed is None else seed


def is_shard(loader: Any) -> bool:
    """Return whether a loader has this rank's part of the samples already."""
    return isinstance(loader, BatchesInTurn) or hasattr(loader, "_of_all_ranks")


def whole_loader(loader: Any) -> Any:
    """Return what `loader` is this rank's part of; every other one is itself."""
    return loader._batches if isinstance(loader, BatchesInTurn) else getattr(loader, "_of_all_ranks", loader)


def set_epoch(loader: Any, epoch: int) -> None:
    """Choose the order of a training loader's next iteration, of one that is sharded, by the number of the epoch."""
    is_wrapped = not isinstance(loader, (BatchesInTurn, DataLoader))
    for each in [getattr(*place) for place in loader_places(loader)] if is_wrapped else [loader]:
        chosen = each if isinstance(each, BatchesInTurn) else each.sampler
        if hasattr(chosen, "set_epoch"):
            chosen.set_epoch(epoch)


def micro_batch(batch_size: int, accum_steps: int = 1) -> int:
    """Return the number of samples in one rank's micro batch: `batch_size`, or its part of it with `--batch global`.

    Raises ValueError for sizes below 1, and for a global batch that cannot be split evenly.
    """
    for name, value in (("batch size", batch_size), ("accum_steps", accum_steps)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if get_option("batch") != "global":
        return batch_size
    world_size = get_world_size()
    size, rest = divmod(batch_size, world_size * accum_steps)
    if rest:
        by = f"world size ({world_size})" + (f" x accum_steps ({accum_steps})" if accum_steps > 1 else "")
        use = " or ".join(str(size * world_size * accum_steps) for size in (size, size + 1) if size)
        raise ValueError(f"global batch ({batch_size}) is not divisible by {by}; use {use}")
    return size


def keep_total_batch() -> None:
    """Let a batch size count all processes, as `--batch global` does: each keeps its rows of every batch."""
    set_options(SimpleNamespace(batch="global"))  # type: ignore[arg-type]


def own_batches(number: int) -> int:
    """Return how many whole batches this rank draws of so many that one process does: all with `--batch global`."""
    return number if get_option("batch") == "global" else number // get_world_size() or number


def own_batch_size(batch_size: int, samples: Any = ()) -> int:
    """Return how many samples this rank has of the training batch in use, for what is shaped by the batch size.

    `micro_batch(batch_size)`, which may raise ValueError; fewer in a last batch, all in an evaluation (of `samples`).
    """
    is_whole = not batches_in_use or batch_size in first_sizes(samples, slice(1))
    if get_world_size() == 1 or (is_whole and not torch.is_grad_enabled()):
        return batch_size
    full = micro_batch(batch_size)
    lengths = {batch.length for batch in batches_in_use.values() if batch.full == full}
    return lengths.pop() if len(lengths) == 1 else full


def samples_per_step(batch_size: int, accum_steps: int = 1) -> int:
    """Return how many samples all ranks take in an optimizer step; raises RuntimeError before setup_distributed."""
    require_group("samples_per_step")
    return micro_batch(batch_size, accum_steps) * get_world_size() * accum_steps
