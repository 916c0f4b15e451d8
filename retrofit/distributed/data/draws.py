"""Training batches that a script draws itself, without a DataLoader: this rank's samples of each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from types import FrameType, GeneratorType
from typing import Any

import torch
import torch.distributed as dist

from ..collectives import broadcast_object
from ..failure.collective_calls import collective
from ..failure.watchdog import begin_step
from ..process.process_group import get_rank, get_world_size, group_for, is_distributed, require_group
from .batch import Batch, batches_in_use, rows_of
from .loaders import micro_batch
from .random_state import get_rng_state, set_rng_state, split_random_streams

__all__ = ["batch_of_ranks", "draw_together", "own_draw", "own_part", "whole_batches"]

Line = tuple[str, int]  # of the script
_times_taken = 0  # batches, over all lines
_taken_at: dict[Line, int] = {}  # which of them was a line's last one
_full: dict[Line, int] = {}  # samples of a rank in the longest batch of a line
_own_seed: int | None = None  # of this rank's stream, once it has one
_is_whole = False  # while a batch of whole_batches is made


def batch_of_ranks(batch_size: int) -> int:
    """Return how many samples all ranks have in one batch: `micro_batch(batch_size)` each, which may raise."""
    require_group("batch_of_ranks")
    return batch_size if get_world_size() == 1 or _is_whole else micro_batch(batch_size) * get_world_size()


def own_draw(batch: Any, batch_size: int | None = None) -> Any:
    """Return this rank's samples of a batch that rank 0 has drawn; what the other ranks have drawn is not used.

    `batch`: indices or samples, as a tensor, an array or a list with an entry per sample, or a tuple of these. It is
    drawn for all ranks: `batch_of_ranks(batch_size)` samples. From the first call on every rank draws other random
    numbers of its own. Raises ValueError where `batch_size` is given and a part of the batch has another number of rows
    than `batch_of_ranks(batch_size)`: they are not known to be samples then. Collective: every rank.
    """
    if not is_distributed():
        return batch
    if batch_size is not None:
        batch = _require_rows(batch, batch_of_ranks(batch_size))
    return _taken(_of_main(batch), sys._getframe(1))


def _require_rows(batch: Any, total: int) -> Any:
    """Return a batch that has `total` rows in all its parts: a tuple of them for a list, or for what zip() gives."""
    is_several = isinstance(batch, (tuple, zip, map)) or (isinstance(batch, list) and len(batch) != total)
    batch = tuple(batch) if is_several else batch
    lengths = [len(part) if hasattr(part, "__len__") else 1 for part in (batch if is_several else [batch])]
    if set(lengths) != {total}:
        raise ValueError(
            f"a batch of {total} samples was asked for, and its parts have {lengths} rows: split it by hand, with "
            "rd.data.own_part for each part whose rows are samples"
        )
    return batch


def own_part(batch: Any) -> Any:
    """Return this rank's samples of a batch that is the same on all ranks: each `world_size`-th one, from its rank on.

    `batch` is what `own_draw` takes. Where a last batch has fewer samples than there are ranks, the first ones are
    repeated; they count nothing. From the first call on every rank draws other random numbers of its own.
    """
    return _taken(batch, sys._getframe(1)) if is_distributed() else batch


def whole_batches(batches: Any) -> Any:
    """Return batches that every rank uses whole: what draws and splits those of a training leaves these as they are.

    `batches`: a generator of the script that both use, for an evaluation, or a function that gives one batch, or that
    evaluates. Every rank must use it as often as the others, where it draws random numbers.
    """
    if is_distributed() and callable(batches):
        return lambda *args, **kwargs: next(_made_whole(batches(*args, **kwargs) for _ in range(1)))
    return _made_whole(batches) if is_distributed() else batches


def _made_whole(batches: Iterable[Any]) -> Iterator[Any]:
    global _is_whole
    drawing, end = (tuple(b) if isinstance(b, Iterator) else b for b in chain.from_iterable([batches])), object()
    while True:  # no part of a batch, nor iter(batches), draws before or later
        before, _is_whole, in_use = _is_whole, True, dict(batches_in_use)
        batches_in_use.clear()  # a training's, which may still need them later
        try:
            batch = next(drawing, end)
        finally:
            _is_whole = before
            batches_in_use.update(in_use)
        if batch is end:
            return
        yield batch


@collective
def draw_together(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return `function(*args, **kwargs)`, in which every rank draws the random numbers of rank 0: a common order.

    The other ranks then continue with their own random streams. Of a generator that it returns each entry is drawn in
    this way. Collective: every rank.
    """
    if not is_distributed():
        return function(*args, **kwargs)
    drawn = _drawn_together(function, *args, **kwargs)
    return _each_together(drawn) if isinstance(drawn, GeneratorType) else drawn


def _each_together(drawn: Iterator[Any]) -> Iterator[Any]:
    end = object()
    while (entry := _drawn_together(next, drawn, end)) is not end:
        yield entry


def _drawn_together(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    own, common = get_rng_state(), broadcast_object(get_rng_state())
    if get_rank() == 0:
        return function(*args, **kwargs)
    set_rng_state(common)
    try:
        return function(*args, **kwargs)
    finally:
        set_rng_state(own)


@collective
def _of_main(batch: Any) -> Any:
    """Return a batch as rank 0 has it. Tensors travel as they are, everything else as an object."""
    if isinstance(batch, torch.Tensor):
        shared = batch.detach().clone(memory_format=torch.contiguous_format)
        is_on_gpu = shared.device.type != "cpu" or dist.get_backend() != "nccl" or group_for(shared) is not None
        shared = shared if is_on_gpu else shared.cuda()
        dist.broadcast(shared, src=0, group=group_for(shared))
        return shared.to(batch.device).requires_grad_(batch.requires_grad)
    if isinstance(batch, tuple) and any(isinstance(part, torch.Tensor) for part in batch):
        return tuple(_of_main(part) for part in batch)
    return broadcast_object(batch)


def _taken(batch: Any, frame: FrameType) -> Any:
    """Return this rank's samples and note that they are in use, until the same line takes others."""
    global _times_taken
    line = frame.f_code.co_filename, frame.f_lineno
    lengths = {len(part) for part in batch} if isinstance(batch, tuple) else {len(batch)}
    if _is_whole or lengths == {0}:
        return batch
    if len(lengths) != 1:
        raise ValueError(f"a batch needs as many entries as samples in all its parts; got {lengths}")
    (total,) = lengths
    _split_streams()
    of_ranks = tuple(len(range(rank, total, get_world_size())) for rank in range(get_world_size()))
    own = of_ranks[get_rank()]
    length = max(own, 1)
    _full[line] = max(_full.get(line, 0), length)
    _forget_unused(line)
    _taken_at[line] = _times_taken = _times_taken + 1
    batches_in_use[line] = Batch(length, _full[line], own * get_world_size() / total, of_ranks)
    begin_step(f"batch {_times_taken}")
    return tuple(_rows(part, total) for part in batch) if isinstance(batch, tuple) else _rows(batch, total)


def _split_streams() -> None:
    """Let this rank draw random numbers of its own from now on, also after the script has seeded its streams again."""
    global _own_seed
    if torch.initial_seed() != _own_seed:
        split_random_streams(torch.initial_seed() % 2**31)
        _own_seed = torch.initial_seed()


def _forget_unused(line: Line) -> None:
    """Forget the batches of lines that have taken none since this line took its last one: that loop has ended."""
    last = _taken_at.get(line, 0)
    for other in [other for other, taken in _taken_at.items() if taken < last]:
        del _taken_at[other]
        batches_in_use.pop(other, None)


def _rows(part: Any, total: int) -> Any:
    rank = get_rank()
    rows = slice(rank, None, get_world_size()) if rank < total else slice(rank % total, rank % total + 1)
    if not (isinstance(part, torch.Tensor) and part.requires_grad and part.is_leaf):
        return rows_of(part, rows)
    return part.detach()[rows].clone().requires_grad_()
