"""Let every rank run a model equally often, where a forward pass communicates and the ranks have unequal numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from ..collectives import broadcast_object, gather_objects
from ..evaluation import share_batches
from ..process.process_group import get_rank
from .converted.torch_fsdp import is_sharded
from .zero import gathers_in_forward


class EvaluationBatches:
    """This rank's batches of an evaluation, `most` at most, for a loop that calls `model` once per batch.

    A sharded model gathers parameters on all ranks in each forward pass; a rank with fewer batches than another then
    repeats its last one after the loop, and nothing of that counts. Collective: every rank, to construct it and to
    iterate over it to the end.
    """

    def __init__(self, loader: DataLoader, model: nn.Module, most: int | None = None) -> None:
        self._model, self._share, self._most = model, share_batches(loader), most
        number = len(self._share)  # type: ignore[arg-type]
        self._number = number if most is None else min(most, number)

    def __len__(self) -> int:
        return self._number

    def __iter__(self) -> Iterator[Any]:
        with _even_forwards(self._model, self._number):
            yield from islice(self._share, self._most)  # to its end, and begins a share of none, too: collective


@contextmanager
def _even_forwards(model: nn.Module, number: int) -> Iterator[None]:
    """Run a loop of `number` forward passes of `model`, and those that another rank has more.

    For sharded models only. After the loop no parameter is left gathered, as a forward without a backward leaves it
    under SHARD_GRAD_OP: it would hide what changes the shards. Collective: every rank.
    """
    if not is_sharded(model) and not gathers_in_forward(model):
        yield
        return
    numbers = gather_objects(number)
    source = numbers.index(max(numbers)) if min(numbers) == 0 < max(numbers) else None  # of inputs for who has none
    num_calls, inputs = 0, None

    def remember(_: nn.Module, args: Any, kwargs: Any) -> None:
        nonlocal num_calls, inputs
        if num_calls == 0 and source is not None:
            broadcast_object((args, kwargs) if get_rank() == source else None, source)
        num_calls, inputs = num_calls + 1, (args, kwargs)

    handle = model.register_forward_pre_hook(remember, prepend=True, with_kwargs=True)  # before FSDP gathers
    try:
        yield
    finally:
        handle.remove()
    if num_calls == 0 and source is not None:
        inputs = broadcast_object(None, source)
    for _ in range(max(numbers) - num_calls):
        assert inputs is not None
        with torch.no_grad():
            model(*inputs[0], **inputs[1])
    for part in model.modules():
        if is_sharded(part):
            part.reshard()  # type: ignore[operator]
