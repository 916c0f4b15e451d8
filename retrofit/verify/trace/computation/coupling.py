"""Operators of a forward pass for which the mean over ranks is not the value of the whole batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from retrofit.distributed.ddp.gradients import in_backward
from retrofit.verify.trace.events import Event, Record, SimilarityProduct, ValidCount

MAX_EVENTS = 50  # of a kind and process
_MEAN = 1  # at::Reduction::Mean
_LOSSES = ("aten::nll_loss_forward", "aten::nll_loss2d_forward")
_PRODUCTS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}  # where the two factors begin
_WEIGHT_NODES = 16  # a weight is made of its parameter in a few operations; features are not
_LOOKUPS = ("Embedding", "Index", "Gather")


class ForwardEvidence:
    """Records ValidCount and SimilarityProduct, MAX_EVENTS of each."""

    def __init__(self, record: Record, rows: Callable[[], list[int]]) -> None:
        self._record = record
        self._rows = rows
        self._counts: Counter[type[Event]] = Counter()

    def watched(self, func: Any, run: Callable[[tuple, dict], Any]) -> Callable[[tuple, dict], Any]:
        """Return `run`, with a look at the arguments first where `func` is one of the operators that tell."""
        name = func._schema.name
        if func._schema.is_mutable or not (name in _LOSSES or name in _PRODUCTS):
            return run
        look = self._look_at_loss if name in _LOSSES else self._look_at_product

        def watched(args: tuple, kwargs: dict) -> Any:
            if torch.is_grad_enabled() and not in_backward():
                look(name, args)
            return run(args, kwargs)

        return watched

    def _look_at_loss(self, name: str, args: tuple) -> None:
        prediction, target, _, reduction, ignore_index = args
        if reduction == _MEAN and prediction.requires_grad and self._counts[ValidCount] < MAX_EVENTS:
            count = int((target != ignore_index).sum())
            self._event(ValidCount(name.split("::")[1], count))

    def _look_at_product(self, name: str, args: tuple) -> None:
        first = _PRODUCTS[name]
        left, right = args[first : first + 2]
        size = left.shape[-2]
        if size != right.shape[-1] or self._counts[SimilarityProduct] >= MAX_EVENTS:
            return
        num_rows = len(self._rows())
        if num_rows < 2 or size == 0 or size % num_rows:
            return
        if left.dim() == 3 and left.shape[0] % num_rows == 0:
            return  # the rows are in front: attention within each sample
        if (left.requires_grad or right.requires_grad) and not (_is_weight(left) or _is_weight(right)):
            self._event(SimilarityProduct([*left.shape[:-1], size], num_rows))

    def _event(self, event: Event) -> None:
        self._counts[type(event)] += 1
        self._record(event)


def _is_weight(tensor: torch.Tensor) -> bool:
    """Return whether the tensor is a parameter, a view of one, or computed from parameters alone (normalised, cast).

    Operators see the very tensors of the script, with their autograd history.
    """
    base = tensor if tensor._base is None else tensor._base
    if isinstance(base, nn.Parameter):
        return True
    todo, seen = [base.grad_fn], set()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if node is None or len(seen) > _WEIGHT_NODES or node.name().startswith(_LOOKUPS):
            return False  # an input without gradient: a batch
        variable = getattr(node, "variable", None)
        if variable is not None and not isinstance(variable, nn.Parameter):
            return False
        todo += [parent for parent, _ in node.next_functions]
    return True
