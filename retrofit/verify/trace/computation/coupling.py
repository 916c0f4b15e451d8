"""Operators of a forward pass for which the mean over ranks is not the value of the whole batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from retrofit.distributed.ddp.gradients import in_backward
from retrofit.verify.trace.events import BatchSelection, Event, PairedRows, Record, SimilarityProduct, ValidCount
from retrofit.verify.trace.randomness.draws import place_in_script
from retrofit.verify.trace.randomness.rows.parts import pairs_rows

MAX_EVENTS = 50  # of a kind and process
_MEAN = 1  # at::Reduction::Mean
_LOSSES = ("aten::nll_loss_forward", "aten::nll_loss2d_forward")
_PRODUCTS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}  # where the two factors begin
# What compares the samples where it goes along the first dimension, with the place of that among the arguments.
_SELECTIONS = {
    **{"aten::topk": 2, "aten::kthvalue": 2, "aten::sort": 1, "aten::median": 1, "aten::var": 1, "aten::std": 1},
    **{"aten::_softmax": 1, "aten::_log_softmax": 1, "aten::logsumexp": 1, "aten::cumsum": 1, "aten::var_mean": 1},
}
# Linear in the samples, if the loss is linear in them: a mean of losses is, and what features are centred by is not.
MEANS = {"aten::mean": 1, "aten::sum": 1}
_WEIGHT_NODES = 16  # a weight is made of its parameter in a few operations; features are not
_LOOKUPS = ("Embedding", "Index", "Gather")


class ForwardEvidence:
    """Records ValidCount, SimilarityProduct and BatchSelection, MAX_EVENTS of each, and the lines of PairedRows."""

    def __init__(self, record: Record, rows: Callable[[], list[int]]) -> None:
        self._record = record
        self._rows = rows
        self._counts: Counter[type[Event]] = Counter()
        self._pairs = paired_rows(record)

    def watched(self, func: Any, run: Callable[[tuple, dict], Any]) -> Callable[[tuple, dict], Any]:
        """Return `run`, with a look at the arguments first where `func` is one of the operators that tell."""
        name = func._schema.name
        looks = {**dict.fromkeys(_LOSSES, self._look_at_loss), **dict.fromkeys(_PRODUCTS, self._look_at_product)}
        looks |= dict.fromkeys((*_SELECTIONS, *MEANS), self._look_at_selection)
        looks |= dict.fromkeys(("aten::flip", "aten::roll"), self._look_at_pairs)
        look = looks.get(name)
        if func._schema.is_mutable or look is None:
            return run

        def watched(args: tuple, kwargs: dict) -> Any:
            if torch.is_grad_enabled() and not in_backward():
                look(name, args)
            return run(args, kwargs)

        return watched

    def _look_at_loss(self, name: str, args: tuple) -> None:
        prediction, target, weight, reduction, ignore_index = args
        if reduction == _MEAN and prediction.requires_grad and self._counts[ValidCount] < MAX_EVENTS:
            valid = target != ignore_index
            count = float(valid.sum() if weight is None else weight[target[valid]].sum())
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

    def _look_at_selection(self, name: str, args: tuple) -> None:
        values, num_rows = args[0], len(self._rows())
        place = {**_SELECTIONS, **MEANS}[name]
        dim = args[place] if len(args) > place else -1
        if self._counts[BatchSelection] >= MAX_EVENTS or num_rows < 2 or not values.requires_grad or not values.dim():
            return
        dims = dim if isinstance(dim, (list, tuple)) else [dim]
        if name in MEANS and len(dims) == values.dim():
            return  # to one number: the loss itself
        is_first = any(isinstance(one, int) and one % values.dim() == 0 for one in dims)
        if is_first and values.shape[0] % num_rows == 0 and values.shape[0]:
            self._event(BatchSelection(name.split("::")[1], num_rows))

    def _look_at_pairs(self, name: str, args: tuple) -> None:
        op, values, num_rows = name.split("::")[1], args[0], len(self._rows())
        if num_rows < 2 or not values.dim() or values.shape[0] != num_rows or not pairs_rows(op, args):
            return
        if values.requires_grad and self._counts[BatchSelection] < MAX_EVENTS:
            self._event(BatchSelection(op, num_rows))
        elif not values.requires_grad:
            self._pairs(op, num_rows, True)

    def _event(self, event: Event) -> None:
        self._counts[type(event)] += 1
        self._record(event)


def paired_rows(record: Record) -> Callable[..., None]:
    """Return what to call with an operator that pairs rows of data: each line of the script is recorded once."""
    recorded: set[str] = set()

    def note(name: str, num_rows: int, is_by_part: bool, where: str | None = None) -> None:
        where = where or place_in_script()
        if where not in recorded and len(recorded) < MAX_EVENTS:
            recorded.add(where)
            record(PairedRows(name, num_rows, where, is_by_part))

    return note


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
