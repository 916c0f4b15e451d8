"""Numbers that the operators of a training read and that no batch has made: class weights, means, a temperature."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn

from retrofit.distributed.ddp.gradients import in_backward
from retrofit.verify.trace.computation.fingerprint import norm_and_projection
from retrofit.verify.trace.computation.models import items_of, of_the_script
from retrofit.verify.trace.events import Fingerprint, SteadyInput
from retrofit.verify.trace.randomness.draws import place_in_script
from retrofit.verify.trace.randomness.streams import in_main_thread
from retrofit.verify.trace.recorder import Recorder

WINDOWS = 8  # backward calls from the start of a pass over a loader, in which operators are looked at
MOST_LOOKS, MOST_EQUAL = 5000, 100  # in a window; of one argument at one line
MOST_ELEMENTS = 100_000
MOST_EVENTS, MOST_NAMES = 1000, 200
NUMBERS = 16  # of a tensor that are recorded
COMMON = {0.0, 0.5, 1.0, 2.0, 10.0}  # and their negatives: values of many variables, which name none
_PLAIN = tuple(kind for kind in (torch.Tensor, nn.Parameter, getattr(nn, "Buffer", None)) if kind is not None)
# With a batch as the index: each sample takes its number out of a table.
_LOOKUPS = {"aten::index", "aten::index_select", "aten::gather", "aten::embedding", "aten::take"}
_MOVES = {"aten::copy_", "aten::_to_copy", "aten::clone", "aten::detach", "aten::detach_", "aten::lift_fresh"}


class Seen(NamedTuple):
    """What an operator was given once."""

    value: Fingerprint
    shape: list[int]
    numbers: list[float]


Argument = tuple[str, str, int]  # the line of the script, the operator, the number of the argument


class SteadyInputs:
    """Records what operators of two training batches are given that is the same in both, once per line and value.

    `is_of_batch(tensor)`: whether it is made from the batch in hand.
    """

    def __init__(self, recorder: Recorder, is_of_batch: Callable[[torch.Tensor], bool]) -> None:
        self._recorder, self._is_of_batch = recorder, is_of_batch
        self._windows_left = self._looks = 0
        self._before: dict[Argument, tuple[int, list[Seen]]] = {}  # with the optimizer steps that were finished
        self._now: dict[Argument, list[Seen]] = {}
        self._names: dict[tuple[Argument, int], str | None] = {}
        self._recorded: dict[Argument, list[Seen | None]] = {}
        self._num_events = 0
        self.is_begun = False

    def begin(self) -> None:
        """A pass over a loader begins."""
        self.is_begun = True
        self._windows_left, self._looks = WINDOWS, 0
        self._now, self._names = {}, {}

    def on_backward(self) -> None:
        """The gradients of a loss were computed."""
        if self._windows_left == 0:
            return
        for argument, seen in self._now.items():
            self._compare(argument, seen)
        self._before.update({argument: (self._recorder.step, seen) for argument, seen in self._now.items()})
        self._now, self._looks = {}, 0
        self._windows_left -= 1

    def watched(self, func: Any, run: Callable[[tuple, dict], Any]) -> Callable[[tuple, dict], Any]:
        """Return `run`, with a look at what the operator is given first."""
        name, is_view = func._schema.name, any(one.alias_info is not None for one in func._schema.returns)
        is_view = is_view and not func._schema.is_mutable
        if is_view or name in _MOVES or "norm" in name or not func._schema.arguments:
            return run
        is_lookup = name in _LOOKUPS

        def watched(args: tuple, kwargs: dict) -> Any:
            if self._windows_left and torch.is_grad_enabled() and not in_backward() and in_main_thread():
                self._look(name, args, is_lookup)
            return run(args, kwargs)

        return watched

    def _look(self, name: str, args: tuple, is_lookup: bool) -> None:
        if self._looks >= MOST_LOOKS or next(_tensors_in(args), None) is None:
            return
        if is_lookup:
            args = args[:1] if any(self._is_of_batch(tensor) for tensor in _tensors_in(args[1:])) else ()
        where = None
        for number, given in enumerate(args):
            for value in given if isinstance(given, (list, tuple)) else (given,):
                seen = self._seen(value, is_lookup)
                if seen is None:
                    continue
                where = where or place_in_script()
                argument = where, name, number
                found = self._now.setdefault(argument, [])
                self._looks += 1
                if len(found) < MOST_EQUAL:
                    self._name(argument, len(found), seen, value)
                    found.append(seen)

    def _seen(self, value: Any, is_lookup: bool) -> Seen | None:
        if isinstance(value, float):
            return Seen([value, value], [], [value])
        if type(value) not in _PLAIN or value.requires_grad or not 0 < value.numel() <= MOST_ELEMENTS:
            return None
        if not (value.dtype.is_floating_point or is_lookup) or value.layout is not torch.strided or value.is_meta:
            return None
        if self._is_of_batch(value) and not is_lookup:
            return None
        with torch.no_grad(), suppress(RuntimeError):
            first = value.detach().reshape(-1)[:NUMBERS].tolist()
            return Seen(norm_and_projection(value), list(value.shape), [float(number) for number in first])
        return None

    def _name(self, argument: Argument, place: int, seen: Seen, value: Any) -> None:
        """Find the variable of what is the same again, as long as the functions that hold it are running."""
        (_, before), key = self._before.get(argument, (0, [])), (argument, place)
        if place < len(before) and before[place] == seen and key not in self._names and len(self._names) < MOST_NAMES:
            self._names[key] = variable_of(value, sys._getframe(1))

    def _compare(self, argument: Argument, now: list[Seen]) -> None:
        since, before = self._before.get(argument, (0, []))
        if len(before) != len(now):
            return
        steady = [one if one == other else None for one, other in zip(now, before)]
        if not any(steady) or self._recorded.get(argument) == steady or self._num_events >= MOST_EVENTS:
            return
        self._recorded[argument] = steady
        self._num_events += 1
        where, name, number = argument
        names = [self._names.get((argument, place)) if one else None for place, one in enumerate(steady)]
        self._recorder.record(
            SteadyInput(
                op=name.split("::")[1],
                argument=number,
                where=where,
                since=since,
                values=[one.value if one else None for one in steady],
                shapes=[one.shape if one else [] for one in steady],
                names=names,
                numbers=[one.numbers if one else [] for one in steady],
            )
        )


def _tensors_in(args: tuple | list) -> Iterator[torch.Tensor]:
    for given in args:
        for value in given if isinstance(given, (list, tuple)) else (given,):
            if isinstance(value, torch.Tensor):
                yield value


def variable_of(value: Any, frame: FrameType | None) -> str | None:
    """Return the name of a variable of a running function of the script that holds a tensor or a number.

    The innermost function comes first, and what a variable holds itself before what is in it.
    """
    if isinstance(value, float) and abs(value) in COMMON:
        return None
    while frame is not None:
        variables = [item for item in list(frame.f_locals.items()) if item[0].isidentifier()]
        if of_the_script(frame):
            for depth in (0, 1, 2):
                found = next(filter(None, (_held(name, held, value, depth) for name, held in variables)), None)
                if found is not None:
                    return found
        frame = frame.f_back
    return None


def _held(name: str, holder: Any, value: Any, depth: int) -> str | None:
    """Return the name of `value` in what is `depth` levels inside of a variable."""
    if depth == 0:
        is_it = holder is value or (isinstance(value, float) and type(holder) is float and holder == value)
        return name if is_it else None
    if isinstance(holder, nn.Module):
        inside = [(f"{name}.{key}", item) for kept in (holder._buffers, vars(holder)) for key, item in kept.items()]
    else:
        inside = items_of(name, holder)
    return next((found for inner, item in inside if (found := _held(inner, item, value, depth - 1))), None)
