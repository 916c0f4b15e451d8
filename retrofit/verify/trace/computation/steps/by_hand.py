"""Steps that a script makes without an optimizer: weights that it changes in place after a backward call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

Run = Callable[[tuple, dict], Any]


class StepsByHand:
    """Takes the place of the optimizer where a script has none.

    A step begins with the first write to a weight since a backward call, and ends before the next forward or backward,
    the next batch, or the end of the script. `begin` and `end` are called with this object, which has the
    `param_groups` of an optimizer, without a learning rate, which is not known. A weight is a leaf of the graph of a
    loss that one of the `models()` holds, or that the script changes; the latter counts from the next step on, but for
    the first of them. A weight whose `data` is exchanged for another tensor is not seen.
    """

    def __init__(
        self,
        begin: Callable[[Any], None],
        end: Callable[[Any], None],
        models: Callable[[], Iterable[torch.nn.Module]],
    ) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": []}]
        self._begin, self._end, self._models = begin, end, models
        self._changed: list[torch.Tensor] = []  # weights without a model, which count from the next step on
        self._leaves: dict[int, torch.Tensor] = {}  # of the losses since the last step, by the place of their memory
        self._is_open = False

    def note_loss(self, roots: Iterable[torch.Tensor]) -> None:
        """A backward call begins: what its loss depends on may be changed by the script after it."""
        self._leaves.update({_place_of(leaf): leaf for leaf in leaves_of(roots)})

    def close(self) -> None:
        """End the step, if one has begun: its weights have all been changed."""
        if self._is_open:
            self._is_open = False
            self._leaves.clear()
            self._end(self)

    def watched(self, func: Any, run: Run) -> Run:
        """Return how to run an operator so that its writes to weights are seen."""
        if not func._schema.is_mutable:
            return run
        arguments = enumerate(func._schema.arguments)
        written = [(i, one.name) for i, one in arguments if one.alias_info is not None and one.alias_info.is_write]

        def watching(args: tuple, kwargs: dict) -> Any:
            if self._leaves:
                values = (args[place] if place < len(args) else kwargs.get(name) for place, name in written)
                for value in values:
                    for tensor in _tensors_in(value):
                        self._note_write(self._leaves.get(_place_of(tensor)))
            return run(args, kwargs)

        return watching

    def _note_write(self, leaf: torch.Tensor | None) -> None:
        if leaf is None:
            return
        self._changed.append(leaf)
        if not self._is_open:
            self._is_open = True
            self._add_weights()
            self._begin(self)

    def _add_weights(self) -> None:
        parameters = self.param_groups[0]["params"]
        known, leaves = {id(parameter) for parameter in parameters}, {id(leaf) for leaf in self._leaves.values()}
        of_models = (parameter for model in self._models() for parameter in model.parameters())
        for weight in [*(one for one in of_models if id(one) in leaves), *self._changed]:
            if id(weight) not in known:
                known.add(id(weight))
                parameters.append(weight)
        self._changed.clear()


def leaves_of(roots: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield the tensors that gradients are computed for, each once, in an order that the graph alone decides."""
    nodes = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor):
            yield leaf
        following = [one for one, _ in node.next_functions if one is not None and one not in seen]
        nodes.extend(following)
        seen.update(following)


def _tensors_in(value: Any) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return (value,)
    return [one for one in value if isinstance(one, torch.Tensor)] if isinstance(value, (list, tuple)) else ()


def _place_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else 0
