"""Call functions at the end of every backward pass that reaches a model's output."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from itertools import count
from typing import Any

import torch

DEEPEST = 6  # levels of containers in an output that are looked at

MOST_NESTED = 8  # backward passes inside of each other

_numbers = count()
_pending: dict[int, dict[int, AfterBackward]] = {}  # by backward pass: what it has reached, by the order of creation


class AfterBackward:
    """Watches the outputs of one model and calls two functions once per backward pass that reaches any of them.

    They run when all gradients of the pass are accumulated, those of a nested pass (activation checkpointing) and of a
    second derivative included: first `complete` of every model that the pass has reached, then, when what these have
    queued is done, `finish` of every model; of several models in the order of their creation, the same on every rank.
    `torch.autograd.grad`, which leaves no gradients, calls nothing.
    """

    def __init__(self, complete: Callable[[], None], finish: Callable[[], None]) -> None:
        self.complete, self._finish, self._number = complete, finish, next(_numbers)
        self._is_open = False
        # A leaf: its hook runs in backward(), but not in autograd.grad, which stops at the inputs that it was given.
        self._anchor = torch.zeros((), requires_grad=True)
        self._anchor.register_hook(self.reached)

    def watch(self, output: Any) -> Any:
        """Return `output` with its tensors that need gradients watched, in containers of their own types."""
        self._is_open = False  # also after a pass that ended in an error
        tensors: dict[int, torch.Tensor] = {}
        _collect(output, tensors)
        if not tensors:
            return output
        # Each for itself: of an output that the loss leaves out, nothing must flow back.
        watched = {key: _Watch.apply(self._anchor, tensor) for key, tensor in tensors.items()}
        return _replace(output, watched)

    def reached(self, gradient: torch.Tensor) -> None:
        """Call the functions at the end of this backward pass; a hook for whatever the pass may reach."""
        if self._is_open:
            return
        self._is_open = True
        task = torch._C._current_graph_task_id()
        if task not in _pending:
            for earlier in sorted(_pending)[:-MOST_NESTED]:  # left by passes that ended in an error
                del _pending[earlier]
            _pending[task] = {}
            queue_callback(lambda: queue_callback(lambda: _complete(task)))  # after what DDP itself has queued by then
        _pending[task][self._number] = self

    def finish(self) -> None:
        self._is_open, self._anchor.grad = False, None
        self._finish()


def queue_callback(function: Callable[[], None]) -> None:
    """Let the backward pass that is running call `function` at its end, after what is queued already."""
    torch.autograd.Variable._execution_engine.queue_callback(function)  # type: ignore[attr-defined]


def _complete(task: int) -> None:
    reached = [watch for _, watch in sorted(_pending.pop(task, {}).items())]
    for watch in reached:
        with torch.no_grad():
            watch.complete()
    queue_callback(lambda: _finish(reached))


@torch.no_grad()
def _finish(reached: list[AfterBackward]) -> None:
    for watch in reached:
        watch.finish()


class _Watch(torch.autograd.Function):
    """The identity, with an edge to an anchor. Nothing is copied, and what it returns may be changed in place."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        ctx.anchor = anchor
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (gradient,) = gradients
        if torch.is_grad_enabled():  # create_graph: what is derived from this gradient is watched, too
            gradient = _Watch.apply(ctx.anchor, gradient)
        return torch.zeros(()), gradient


def _collect(value: Any, found: dict[int, torch.Tensor], depth: int = DEEPEST) -> None:
    if isinstance(value, torch.Tensor):
        if value.requires_grad and value.grad_fn is not None:
            found[id(value)] = value
        return
    for entry in _entries(value) if depth else ():
        _collect(entry, found, depth - 1)


def _entries(value: Any) -> Iterable[Any]:
    if isinstance(value, MutableMapping):
        return value.values()
    if isinstance(value, (list, tuple)):
        return value
    return vars(value).values() if _has_fields(value) else ()


def _replace(value: Any, watched: Mapping[int, torch.Tensor], depth: int = DEEPEST) -> Any:
    """Return `value` with tensors replaced, in containers of its own types; what holds none of them stays the same."""
    if isinstance(value, torch.Tensor):
        return watched.get(id(value), value)
    if not depth:
        return value
    inside: dict[int, torch.Tensor] = {}
    _collect(value, inside, depth)
    if not inside:
        return value
    if isinstance(value, (list, tuple)):
        parts = [_replace(entry, watched, depth - 1) for entry in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    replaced = copy.copy(value)
    for name, entry in (value if isinstance(value, MutableMapping) else vars(value)).items():
        if isinstance(value, MutableMapping):
            replaced[name] = _replace(entry, watched, depth - 1)
        else:
            object.__setattr__(replaced, name, _replace(entry, watched, depth - 1))
    return replaced


def _has_fields(value: Any) -> bool:
    """Return whether this is an object of plain attributes, such as a dataclass or a distribution."""
    return hasattr(value, "__dict__") and not isinstance(value, (type, torch.nn.Module)) and not callable(value)
