"""Let every rank run a model equally often, where a forward pass communicates and the ranks have unequal numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from .fsdp import is_sharded
from .process_group import get_rank
from .reduce import broadcast_object, gather_objects
from .zero import gathers_in_forward


@contextmanager
def even_forwards(model: nn.Module, loader: Sized) -> Iterator[None]:
    """Run a loop over `loader` that calls `model` once per batch; a rank with fewer batches than another goes on with
    its last one behind the loop, and nothing of that counts.

    For sharded models, whose forward gathers parameters on all ranks; any other strategy lets ranks run the model as
    often as they like, and nothing happens. Behind the loop no parameter is left gathered, as a forward without a
    backward leaves it under SHARD_GRAD_OP: it would hide what changes the shards. Collective: every rank.
    """
    if not is_sharded(model) and not gathers_in_forward(model):
        yield
        return
    numbers = gather_objects(len(loader))
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
