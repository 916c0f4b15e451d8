"""The mean over ranks of gradients: which of them DDP leaves to be averaged at the end of a backward pass, and when."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._utils import _flatten_dense_tensors, _take_tensors, _unflatten_dense_tensors

FIRST_PASSES = 20  # that are looked at: a part that one pass in ten leaves out is then hardly missed
FOREVER = -1
MOST_FREEZINGS = 2  # changes of what is trainable, after which it is taken to change all the time
BYTES_AT_ONCE = 25 * 2**20  # as in DDP's buckets
DEEPEST = 6  # levels of containers in a model's output that are looked at

_sync_numbers = count()
_reached: dict[int, dict[int, GradientSync]] = {}  # by backward pass: the models it has reached, by their number


class GradientSync:
    """Averages after each backward pass of one model what DDP has not averaged during it.

    DDP waits for a gradient of every parameter. Over the first passes the ranks look which parameters get one, and
    average at the end. If every rank used the same ones in each pass, DDP reduces these from then on, a rank that lacks
    one after all hands in zeros, and the ranks look at the others after each pass. Anything else, and whenever that
    changes: everything is averaged at the end, of the outermost pass, for several models in the order of their
    creation. `torch.autograd.grad`, which leaves no gradients, has none.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], num_passes: int) -> None:
        self.parameters = list(parameters)
        self.unused: set[int] = set()  # numbers of parameters that no rank has used, which DDP leaves out
        self.by_ddp: list[int] = []  # numbers of the parameters that DDP reduces, in its order
        self.reducer: Any = None  # DDP's
        self.group: Any = None
        self.compare: Callable[[bool], bool] = lambda has_missed: False
        self.is_wanted = False  # whether gradients are to be the same on all ranks after the next pass
        self.is_armed = False  # whether DDP reduces them in it
        self._number = next(_sync_numbers)
        self._is_open = self._has_missed = False
        self._touched: set[int] = set()
        self._marked: list[nn.Parameter] = []
        self._by_any: set[int] = set()  # numbers of what any rank, and all ranks, used in the passes that are looked at
        self._by_all: set[int] = set()
        self._nodes: dict[int, Any] = {}  # that accumulate the gradients
        self._first_passes, self._num_freezings = num_passes, 0
        # A leaf: its hook runs in backward(), but not in autograd.grad, which stops at the inputs that it was given.
        self._anchor = torch.zeros((), requires_grad=True)
        self._anchor.register_hook(_weak_hook(self, GradientSync._open))
        self._trainable = self._now_trainable()
        self._look(num_passes)

    @property
    def is_looking(self) -> bool:
        return self._passes_left != 0

    def leave_to_ddp(self) -> None:
        self._first_passes = self._passes_left = 0

    def look_again(self) -> None:
        """Look at parameters that were moved, or given another type: other nodes accumulate their gradients now."""
        self._nodes = {}
        self._look(self._first_passes)

    def follow_freezing(self) -> None:
        """Look again where other parameters are trainable than before."""
        if self._trainable != self._now_trainable():
            self._trainable = self._now_trainable()
            self._num_freezings += 1
            has_enough = self._first_passes and self._num_freezings > MOST_FREEZINGS
            self._look(FOREVER if has_enough else self._first_passes)

    def wanted_of_ddp(self) -> list[int]:
        return sorted(self._trainable - self.unused)

    def watch(self, output: Any, weight: float) -> Any:
        """Return a model's output with its tensors watched; their gradients get the factor `weight`."""
        if not in_backward():  # what is open was left by passes that ended in an error
            _reached.clear()
            self._is_open = False
        return scale_gradients(output, weight, self._anchor)

    @torch.no_grad()
    def complete(self) -> None:
        """Hand in -0.0 for what DDP's reduction lacks on this rank: only sums of nothing else are -0.0 again."""
        places = [place for place, number in enumerate(self.by_ddp) if number not in self._touched]
        if not self.is_armed or not places:
            return
        self._has_missed = True
        for parameter in (self.parameters[self.by_ddp[place]] for place in places):
            if parameter.grad is None:
                parameter.grad = torch.full_like(parameter, -0.0, requires_grad=False)
                self._marked.append(parameter)
        for place in places:
            self.reducer._autograd_hook(place)

    @torch.no_grad()
    def finish(self) -> None:
        """Average what DDP did not, and let the ranks agree on what they use. Collective: every rank."""
        is_armed = self.is_armed
        self._is_open = self.is_wanted = self.is_armed = False
        for parameter in self._marked:
            if bool((parameter.grad.signbit() & (parameter.grad == 0)).all()):  # type: ignore[union-attr, operator]
                parameter.grad = None
        self._marked = []
        numbers = sorted(self.unused if is_armed else self._trainable)
        by_any, by_all = average_gradients({n: self.parameters[n] for n in numbers}, self._touched, self.group)
        if self.is_looking and not is_armed:
            self._learn(by_any, by_all)
        if self.compare(self._has_missed) or (is_armed and by_any):
            self._has_missed = False
            self._look(FOREVER)

    def _look(self, num_passes: int) -> None:
        self._passes_left = num_passes
        self.unused, self._by_any, self._by_all = set(), set(), set(self._trainable)
        for number in self._trainable - set(self._nodes):
            with torch.enable_grad():
                view: Any = self.parameters[number].view_as(self.parameters[number])
            self._nodes[number] = view.grad_fn.next_functions[0][0]
            self._nodes[number].register_prehook(_weak_hook(self, GradientSync._reach, number))

    def _learn(self, by_any: set[int], by_all: set[int]) -> None:
        """Note what the ranks used in a pass; after the last one decide whether DDP can take over."""
        self._by_any |= by_any
        self._by_all &= by_all
        self._passes_left -= 1
        if self._passes_left == 0:
            # DDP of torch 2.14 over gloo leaves what follows a sparse gradient unreduced.
            is_sparse = any(_is_sparse(self.parameters[number]) for number in by_any)
            if is_sparse or not self._by_any or self._by_any != self._by_all:
                self._passes_left = FOREVER
            else:
                self.unused = self._trainable - self._by_any

    def _now_trainable(self) -> set[int]:
        return {number for number, parameter in enumerate(self.parameters) if parameter.requires_grad}

    def _reach(self, number: int, gradients: Any) -> None:
        """Note that a parameter is about to get its gradient; None is what a function returned None for."""
        if self.is_wanted:
            self._open()
        if self._is_open and (gradients[0] is not None or self.is_armed):
            self._touched.add(number)

    def _open(self, gradient: Any = None) -> None:
        if self._is_open:
            return
        self._is_open, self._touched = True, set()
        task = torch._C._current_graph_task_id()
        if task not in _reached:
            _reached[task] = {}
            _queue_callback(lambda: _queue_callback(lambda: _complete(task)))  # after what DDP has queued by then
        _reached[task][self._number] = self


def _weak_hook(owner: Any, method: Callable[..., None], *args: Any) -> Callable[[Any], None]:
    """Return a hook that calls `method(owner, *args, gradient)` and does not keep the owner alive."""
    reference = weakref.ref(owner)

    def hook(gradient: Any) -> None:
        living = reference()
        if living is not None:
            method(living, *args, gradient)

    return hook


def in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _queue_callback(function: Callable[[], Any]) -> None:
    """Let the backward pass that is running call `function` at its end, after what is queued already."""
    torch.autograd.Variable._execution_engine.queue_callback(function)  # type: ignore[attr-defined]


def _complete(task: int) -> None:
    syncs = [sync for _, sync in sorted(_reached.pop(task, {}).items())]
    for sync in syncs:
        sync.complete()
    _queue_callback(lambda: [sync.finish() for sync in syncs])  # after what DDP has queued to end its reductions


def average_gradients(
    parameters: Mapping[int, nn.Parameter], touched: set[int], group: Any = None
) -> tuple[set[int], set[int]]:
    """Give every parameter the mean over ranks of its gradient; return what any rank, and all ranks, have `touched`.

    A rank without a gradient counts as zeros; a parameter without one on every rank keeps None, as in one process.
    """
    if not parameters:
        return set(), set()
    kinds = [0 if parameter.grad is None else 1 + _is_sparse(parameter) for parameter in parameters.values()]
    facts = [*kinds, *(int(number in touched) for number in parameters)]
    packed = torch.tensor([facts, [-fact for fact in facts]])
    packed = packed.cuda() if dist.get_backend(group) == "nccl" else packed
    dist.all_reduce(packed, dist.ReduceOp.MAX, group=group)
    highest, lowest = packed.tolist()  # the lowest of the ranks, negative
    number_of_ranks, dense = dist.get_world_size(group), []
    for parameter, kind in zip(parameters.values(), highest):
        if kind == 2:
            no_rows = torch.empty((1, 0), dtype=torch.int64, device=parameter.device), parameter.detach()[:0]
            own = torch.sparse_coo_tensor(*no_rows, parameter.shape) if parameter.grad is None else parameter.grad
            gradient = (own if own.is_sparse else own.to_sparse(1)).div(number_of_ranks).coalesce()
            dist.all_reduce(gradient, group=group)
            parameter.grad = gradient
        elif kind == 1:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter, requires_grad=False)
            dense.append(parameter.grad)
    for gradients in _take_tensors(dense, BYTES_AT_ONCE):
        flat = _flatten_dense_tensors(gradients).div_(number_of_ranks)
        dist.all_reduce(flat, group=group)
        for gradient, part in zip(gradients, _unflatten_dense_tensors(flat, gradients)):
            gradient.copy_(part)
    by_any = {number for number, was_touched in zip(parameters, highest[len(parameters) :]) if was_touched}
    return by_any, {number for number, was_touched in zip(parameters, lowest[len(parameters) :]) if was_touched}


def _is_sparse(parameter: nn.Parameter) -> bool:
    return parameter.grad is not None and parameter.grad.is_sparse


class _ScaledGradient(torch.autograd.Function):
    """The identity, with a factor on the gradient and an edge to `anchor`. What it returns may be changed in place.

    A gradient of the gradient (`create_graph=True`) has no factor of its own: that on the outputs is in the values that
    it is computed from, and that on the inputs, which takes it away from the gradient, is not to take it from there.
    """

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor | None, tensor: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.has_anchor, ctx.factor = anchor is not None, factor
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (gradient,) = gradients
        scaled = gradient if ctx.factor == 1.0 else gradient * ctx.factor
        if scaled.requires_grad and ctx.factor != 1.0:
            scaled = gradient + (scaled - gradient).detach()
        return torch.zeros(()) if ctx.has_anchor else None, scaled, None


def scale_gradients(value: Any, factor: float, anchor: torch.Tensor | None = None) -> Any:
    """Return `value` with a factor on the gradients of all tensors in it; what holds none stays the same object."""
    scaled: dict[int, torch.Tensor] = {}

    def of_tensor(tensor: torch.Tensor) -> torch.Tensor:
        is_made = tensor.requires_grad and (factor != 1.0 or tensor.grad_fn is not None)
        if is_made and id(tensor) not in scaled:  # each for itself: a loss may leave outputs out
            scaled[id(tensor)] = _ScaledGradient.apply(anchor, tensor, factor)
        return scaled.get(id(tensor), tensor)

    return _replace_tensors(value, of_tensor, DEEPEST)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors of a model's output."""
    found: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    _replace_tensors(value, note, DEEPEST)
    return found


def _replace_tensors(value: Any, of_tensor: Callable[[torch.Tensor], torch.Tensor], depth: int) -> Any:
    """Return `value` with other tensors, in containers of its own types: also in dataclasses and distributions."""
    if isinstance(value, torch.Tensor):
        return of_tensor(value)
    entries: Any = {}
    if isinstance(value, MutableMapping):
        entries = value
    elif isinstance(value, (list, tuple)):
        entries = dict(enumerate(value))
    elif hasattr(value, "__dict__") and not isinstance(value, (type, nn.Module)) and not callable(value):
        entries = vars(value)
    changed = {name: _replace_tensors(entry, of_tensor, depth - 1) for name, entry in entries.items() if depth}
    if all(entry is entries[name] for name, entry in changed.items()):
        return value
    if isinstance(value, (list, tuple)):
        return type(value)(*changed.values()) if hasattr(value, "_fields") else type(value)(changed.values())
    copied = copy.copy(value)
    target = copied if isinstance(value, MutableMapping) else vars(copied)
    for name, entry in changed.items():  # the outputs of transformers take entries, and refuse update()
        target[name] = entry
    return copied
