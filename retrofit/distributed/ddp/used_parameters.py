"""The parameters that the losses of a DDP model depend on, as the ranks agree on it.

DDP's reduction waits for a gradient of every parameter. Over the first backward passes the ranks look which parameters
got one on any rank and on all of them. Always all: DDP's own reduction takes over and costs what it always does. Some
never on any rank: it takes over for the others. Anything else, and whenever that changes, the ranks keep looking.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from .average_gradients import average_gradients

FIRST_PASSES = 20  # that are looked at: a part that one pass in ten leaves out is then hardly missed
FOREVER = -1
MOST_FREEZINGS = 2  # changes of what is trainable, after which it is taken to change all the time


class UsedParameters:
    """Counts, over backward passes, which of a model's parameters get gradients.

    `num_passes`: 0 leaves everything to DDP, FOREVER nothing.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], num_passes: int) -> None:
        self.parameters = list(parameters)
        self.unused: list[nn.Parameter] = []  # what no rank has used, which DDP leaves out
        self.is_looking = num_passes != 0
        self.num_passes = self._left = num_passes
        self._freezings = 0
        self._trainable = self._mask()
        self._touched = [False] * len(self.parameters)
        self._ever, self._always = list(self._touched), list(self._trainable)
        self._hooks: list[Any] = []

    def look(self, reached: Any) -> None:
        """Note from now on what gets gradients, and call `reached` when that happens."""
        self.stop_looking()
        self.is_looking, self.unused = True, []
        for number, parameter in enumerate(self.parameters):
            if parameter.requires_grad:
                self._hooks.append(parameter.register_hook(_Note(self._touched, number, reached)))

    def stop_looking(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self.is_looking = [], False

    def was_frozen(self) -> bool:
        """Return whether other parameters are trainable than before; then the looking begins again."""
        trainable = self._mask()
        if trainable == self._trainable:
            return False
        self._freezings += 1
        self._begin(self.num_passes)
        return True

    def keep_looking(self) -> None:
        """Never leave the reduction to DDP again."""
        self._begin(FOREVER)

    def average(self, group: Any) -> bool:
        """Average all gradients of a pass; return whether from now on DDP can reduce them.

        Collective: every rank of `group`.
        """
        trainable = [parameter for parameter in self.parameters if parameter.requires_grad]
        noted = [touched for touched, is_trainable in zip(self._touched, self._mask()) if is_trainable]
        _, by_any, by_all = average_gradients(trainable, group, noted)
        places = (place for place, is_trainable in enumerate(self._mask()) if is_trainable)
        for place, any_rank, all_ranks in zip(places, by_any, by_all):
            self._ever[place] |= any_rank
            self._always[place] &= all_ranks
        self._touched[:] = [False] * len(self._touched)
        self._left -= 1
        if self._left or self._freezings > MOST_FREEZINGS:
            return False
        if any(parameter.grad is not None and parameter.grad.is_sparse for parameter in trainable):
            return False  # DDP of torch 2.14 over gloo leaves what follows a sparse gradient unreduced
        if any(ever != always for ever, always in zip(self._ever, self._always)):
            return False
        pairs = zip(self.parameters, self._ever, self._trainable)
        self.unused = [parameter for parameter, ever, is_trainable in pairs if is_trainable and not ever]
        return len(self.unused) < sum(self._trainable)

    def average_unused(self, group: Any, is_missing: bool) -> bool:
        """Average what DDP leaves out; return whether any rank used some of it after all, or missed something else.

        Collective: every rank of `group`, where there is anything that DDP leaves out.
        """
        if not self.unused:
            return False
        used, by_any, _ = average_gradients(self.unused, group, [is_missing] * len(self.unused))
        return any(used) or any(by_any)

    def _begin(self, num_passes: int) -> None:
        self._trainable, self._left, self.unused = self._mask(), num_passes, []
        self._ever, self._always = [False] * len(self.parameters), list(self._trainable)

    def _mask(self) -> list[bool]:
        return [parameter.requires_grad for parameter in self.parameters]


class _Note:
    """A hook of a parameter: it got a gradient."""

    __torch_unserializable__ = True  # so torch.save leaves it out without a warning

    def __init__(self, touched: list[bool], number: int, reached: Any) -> None:
        self._touched, self._number, self._reached = touched, number, reached

    def __call__(self, gradient: torch.Tensor | None) -> None:
        if gradient is None:  # of what a function returned None for
            return
        self._touched[self._number] = True
        self._reached(gradient)


class MissingGradients:
    """Completes a reduction of DDP that lacks gradients of this rank, so that it ends as if they were zeros.

    A parameter that has none on any rank keeps none. It is marked by a gradient of -0.0: only sums of nothing else
    are -0.0 again.
    """

    def __init__(self) -> None:
        self._marked: list[nn.Parameter] = []

    def complete(self, reducer: Any, parameters_of: Callable[[], Sequence[nn.Parameter]]) -> bool:
        """Hand in what is missing; return whether anything was. The reducer's parameters come in its order."""
        numbers = _missing(reducer)
        parameters = parameters_of() if numbers else []
        for number in numbers:
            parameter = parameters[number]
            if parameter.grad is None:
                parameter.grad = torch.full_like(parameter, -0.0, requires_grad=False)
                self._marked.append(parameter)
        for number in numbers:
            reducer._autograd_hook(number)
        return bool(numbers)

    def restore(self) -> None:
        """Take back the gradients that no rank had, when the reduction is finished."""
        for parameter in self._marked:
            gradient = parameter.grad
            assert gradient is not None
            if bool((gradient.signbit() & (gradient == 0)).all()):
                parameter.grad = None
        self._marked = []


def _missing(reducer: Any) -> list[int]:
    """Return the numbers of the parameters that a reduction which has begun still waits for, when backward is over."""
    try:
        getattr(reducer, "_check_reducer_finalized", lambda: None)()  # an old torch raises in the next forward
    except RuntimeError as error:
        return unfinished(error) or []
    return []


def unfinished(error: RuntimeError) -> list[int] | None:
    """Return the numbers of parameters in DDP's complaint of an unfinished reduction; None for another error."""
    listed = re.search(r"did not receive grad for rank \d+: ((?:\d+[ ,]*)+)", str(error))
    if "Expected to have finished reduction" not in str(error) or listed is None:
        return None
    return [int(number) for number in re.findall(r"\d+", listed[1])]
