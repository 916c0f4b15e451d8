"""Random draws row by row: they depend on the sample, not on the rank or on the rest of the batch."""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from retrofit.distributed.data.random_state import mix_seed
from retrofit.verify.trace import FOLDER
from retrofit.verify.trace.computation.numbers.narrow_draws import drawn_in_float32
from retrofit.verify.trace.events import BatchNumber, PairedRows, Record, RowDraw, UncontrolledDraw

from .layout import JOINS, VIEWS, Block, Place, RowLayout, blocks_of, cut_to
from .streams import drawing, hash_state, stream_key

Run = Callable[[tuple, dict], Any]

# Operators of which a part of the arguments gives a part of the result.
_BY_ROWS = {
    *("bernoulli", "bernoulli_", "binomial", "cauchy", "cauchy_", "exponential", "exponential_", "geometric"),
    *("geometric_", "log_normal", "log_normal_", "multinomial", "native_dropout", "normal", "normal_", "poisson"),
    *("rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "random", "random_"),
    *("rrelu_with_noise", "uniform", "uniform_", "_sample_dirichlet", "_standard_gamma", "_fused_dropout"),
}
_UNTAGGED = {"binomial", "_sample_dirichlet", "_standard_gamma"}  # older torch does not mark them as random
_LAST_IS_ONE_DRAW = {"multinomial", "_sample_dirichlet"}  # the last dimension is not independent
_INDEX_DRAWS = {"randint", "randint_like", "integers"}
_PARTNERS = {"randint", "randperm"}
_PICKS = {*_INDEX_DRAWS, "random_", "randperm"}  # of the samples of a batch
_OWN_FOLDERS = (os.path.dirname(torch.__file__) + os.sep, FOLDER, random.__file__)


class RowDraws:
    """Runs random operators of a batch so that each row has its own stream.

    A row's stream is seeded by its seed (`rows()`) and by a number that is another one for each draw (`keys()`, by
    row). Unless these are given, each operator takes one from torch's CPU stream, whatever it draws. A generator of the
    caller's own advances as it would. Outside a batch draws are those of the script. A draw in which no rows are to be
    found is recorded as an UncontrolledDraw, one for rows as a RowDraw, once per operator and place.
    """

    def __init__(
        self, record: Record, rows: Callable[[], list[int]], keys: Callable[[], list[int]] | None = None
    ) -> None:
        self.may_pick: Callable[[], bool] = bool  # whether a draw of numbers may be that of the next batch
        self.parts: Callable[[], list[list[int]]] = lambda: [list(range(len(rows())))]  # the rows of each rank
        self._record = record
        self.rows = rows
        self.keys = keys or (lambda: [stream_key()] * len(rows()))
        self.own_state: Callable[[str, Any], str | None] = lambda stream, present: None  # before the batch
        self.in_model: Callable[[], bool] = bool  # whether a forward pass is being run
        self.in_loop_body: Callable[[], bool] = bool  # whether the script has a batch, and makes no sample
        self._reported: set[tuple[str, str]] = set()
        self._noted: set[tuple[str, str]] = set()
        self._layout = RowLayout(rows)
        self._counts: Counter[str] = Counter()  # draws of single numbers in the batch in hand, by line
        self._counted: list[int] = []  # the rows of that batch

    def new_batch(self) -> None:
        self._layout.clear()

    def count(self, name: str, stream: str, own_state: Callable[[], str | None]) -> None:
        """Note a draw of a single number, and report the line that has drawn one for each row of the batch in hand.

        `own_state()`: as for `place_of`.
        """
        self.note_number(name, stream, own_state)
        rows = self.rows()
        if len(rows) < 2:
            return
        if rows != self._counted:
            self._counted = list(rows)
            self._counts.clear()
        where = place_in_script()
        self._counts[where] += 1
        if self._counts[where] == len(rows):
            self.report(name, [len(rows)])

    def note_number(self, name: str, stream: str, own_state: Callable[[], str | None]) -> None:
        """Record where a number for a whole batch is drawn, and from what, the first time."""
        if not self.in_loop_body():
            return
        where = place_in_script()
        if (name, where) not in self._noted:
            self._noted.add((name, where))
            self._record(BatchNumber(name, stream, own_state() or "", where))

    def place_of(
        self, name: str, shape: Sequence[int], args: Sequence[Any], own_state: Callable[[], str | None]
    ) -> Place | None:
        """Return where the rows are in what a function of another library draws, None where they are not.

        In a batch, where they are not found, that is recorded. `own_state()`: a hash of its stream before the batch.
        """
        rows = self.rows()
        if not rows or tuple(shape) == (1,) or (name in _PICKS and self.may_pick()):
            return None
        place = self._layout.find(shape)
        if place is None or (name in _INDEX_DRAWS and shape[place.dim] in args[:2]):
            self.report(name, torch.Size(shape))
        if place is not None:
            self._note(name, "numpy", own_state)
        return place

    def controlled(self, func: Any, run: Run) -> Run:
        """Return how to run this operator; `run` itself where chance has no part in it."""
        name = func._schema.name.split("::")[1]
        if func.namespace == "aten" and name in JOINS | VIEWS:
            return self._layout.learning(name, run)
        is_random = torch.Tag.nondeterministic_seeded in func.tags or name in _UNTAGGED
        if not is_random or "backward" in name:
            return run

        def draw(args: tuple, kwargs: dict) -> Any:
            with drawing:
                return self._draw(func, name, args, kwargs)

        return draw

    def _draw(self, func: Any, name: str, args: tuple, kwargs: dict) -> Any:
        rows, own = self.rows(), kwargs.get("generator")
        if not rows:
            return drawn_in_float32(func, name, args, kwargs)
        if any(isinstance(arg, torch.Generator) for arg in args):
            return func(*args, **kwargs)
        if not _is_active(func, args, kwargs) or (name in _PICKS and (self.may_pick() or own is not None)):
            return func(*args, **kwargs)
        if own is not None:
            return self._draw_from(own, func, name, args, kwargs)
        keys = self.keys()
        generator = _default_generator(args, kwargs)
        state = generator.get_state()
        try:
            generator.manual_seed(mix_seed(keys[0]))
            result = func(*args, **kwargs)
            tensor = result[0] if isinstance(result, (tuple, list)) else result
            if name in _PARTNERS and _is_index_into(name, func, args, len(rows)) and tensor.shape == (len(rows),):
                self._draw_partners(name, tensor, rows, keys, generator)
                return result
            place = self._find_rows(name, tensor.shape)
            if place is None or _is_index_into(name, func, args, tensor.shape[place.dim]):
                self.report(name, tensor.shape)
            if place is not None:
                stream = "cuda" if generator.device.type == "cuda" else "torch"
                self._note(name, stream, lambda: self.own_state(stream, state))
                self._draw_rows(func, args, kwargs, result, place, keys, generator)
            return result
        finally:
            generator.set_state(state)

    def _draw_from(self, own: torch.Generator, func: Any, name: str, args: tuple, kwargs: dict) -> Any:
        """Draw with a generator of the script's, for each row from a stream of the row's."""
        before = own.get_state()
        result = func(*args, **kwargs)
        place = self._find_rows(name, (result[0] if isinstance(result, (tuple, list)) else result).shape)
        if place is None:
            return result
        self._note(name, "generator", lambda: hash_state(before))
        keys, generator = self.keys(), _default_generator(args, kwargs)
        state = generator.get_state()
        try:
            self._draw_rows(func, args, {**kwargs, "generator": generator}, result, place, keys, generator)
        finally:
            generator.set_state(state)
        return result

    def _draw_rows(
        self,
        func: Any,
        args: tuple,
        kwargs: dict,
        result: Any,
        place: Place,
        keys: list[int],
        generator: torch.Generator,
    ) -> None:
        rows = self.rows()
        for row, seed in enumerate(rows):
            for block in blocks_of(_shape_of_row(func, result, place)):
                generator.manual_seed(mix_seed(seed, keys[row], *(start for start, _, _ in block if start)))
                _draw_row(func, args, kwargs, result, place, block, (row, len(rows)))

    def _note(self, name: str, stream: str, state: Callable[[], str | None]) -> None:
        """Record where numbers for rows are drawn, and from what, the first time."""
        where = place_in_script()
        if not torch.is_grad_enabled() or (name, where) in self._noted:
            return
        self._noted.add((name, where))
        found = state()
        if found is not None:
            self._record(RowDraw(name, stream, found, f"{mix_seed(*self.rows()):x}", self.in_model(), where))

    def _draw_partners(
        self, name: str, result: Any, rows: list[int], keys: list[int], generator: torch.Generator
    ) -> None:
        """Draw for each row another of the same rank: no rank has those of the others."""
        where = place_in_script()
        if (name, where) not in self._noted and torch.is_grad_enabled():
            self._noted.add((name, where))
            self._record(PairedRows(name, len(rows), where))
        for part in filter(None, self.parts()):
            generator.manual_seed(mix_seed(keys[part[0]], *(rows[row] for row in part)))
            own = torch.tensor(part, dtype=result.dtype, device=result.device)
            size, options = len(part), {"device": result.device, "generator": generator}
            chosen = torch.randperm(size, **options) if name == "randperm" else torch.randint(size, (size,), **options)
            result[own] = own[chosen]

    def _find_rows(self, name: str, shape: torch.Size) -> Place | None:
        if name not in _BY_ROWS or not shape or shape == (1,):  # one number: whether it is a row's cannot be told
            return None
        return self._layout.find(shape[:-1] if name in _LAST_IS_ONE_DRAW else shape)

    def report(self, name: str, shape: Sequence[int]) -> None:
        """Record a draw that cannot be tied to rows, the first time at its place."""
        where = place_in_script()
        if (name, where) not in self._reported:
            self._reported.add((name, where))
            self._record(UncontrolledDraw(name, list(shape), where))


def _shape_of_row(func: Any, result: Any, place: Place) -> list[int]:
    """Return the shape of what is drawn for one row; with ones for dimensions that are drawn in one piece."""
    first = result[0] if isinstance(result, (tuple, list)) else result
    if func._schema.name.split("::")[1] in _LAST_IS_ONE_DRAW:
        return [1] * first.dim()
    return [place.num_entries if dim == place.dim else length for dim, length in enumerate(first.shape)]


def _draw_row(
    func: Any, args: tuple, kwargs: dict, result: Any, place: Place, block: Block, row: tuple[int, int]
) -> None:
    """Draw a block of a row again, into contiguous memory (the order of draws follows the strides), and put it there.

    `row`: its number, and how many there are.
    """
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    shape = results[0].shape
    start, stop, _ = block[place.dim]
    index = place.entries_of(*row, results[0].device)[start : stop if stop > 1 else None]
    written: list[tuple[torch.Tensor, torch.Tensor]] = []

    def part(argument: Any, value: Any) -> Any:
        if argument.name == "size":
            own = [place.num_entries if dim == place.dim else length for dim, length in enumerate(value)]
            return [drawn if stop > 1 else length for length, (_, stop, drawn) in zip(own, block)]
        if not isinstance(value, torch.Tensor):
            return value
        first = len(shape) - value.dim()  # broadcasting aligns at the end
        has_rows = place.dim >= first and value.shape[place.dim - first] == shape[place.dim]
        cut = value.index_select(place.dim - first, index) if has_rows else value
        dims = [dim for dim in range(first, len(shape)) if value.shape[dim - first] == shape[dim]]
        cut = cut_to(cut, block, {dim: dim - first for dim in dims if has_rows or dim != place.dim}, place.dim)
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        if has_rows and (is_written or argument.name == "noise"):  # of RReLU: older torch does not say it is written
            written.append((value, cut))
        return cut

    named = {argument.name: argument for argument in func._schema.arguments}
    own_args = [part(argument, value) for argument, value in zip(func._schema.arguments, args)]
    own_kwargs = {name: part(named[name], value) for name, value in kwargs.items()}
    drawn = func(*own_args, **own_kwargs)
    drawn = list(drawn) if isinstance(drawn, (tuple, list)) else [drawn]
    in_place = [own for _, own in written]
    written += [(whole, own) for whole, own in zip(results, drawn) if not any(own is other for other in in_place)]
    for whole, own in written:
        into = whole
        for dim, (begin, end, _) in enumerate(block):
            if end > 1:
                own = own.narrow(dim, 0, end - begin)
                into = into if dim == place.dim else into.narrow(dim, begin, end - begin)
        into.index_copy_(place.dim, index, own)


def _is_active(func: Any, args: tuple, kwargs: dict) -> bool:
    """Return False for an attention or a recurrent layer whose dropout is off."""
    given = {argument.name: value for argument, value in zip(func._schema.arguments, args)}
    given.update(kwargs)
    probability = [given.get(argument.name, 0) for argument in func._schema.arguments if "dropout" in argument.name]
    return not probability or bool(probability[0])


def _is_index_into(name: str, func: Any, args: tuple, size: int) -> bool:
    """Return whether the draw picks among the batch's own rows: partners that depend on which rows are together."""
    if name == "randperm":
        return args[0] == size
    if name not in _INDEX_DRAWS:
        return False
    return any(argument.name == "high" and value == size for argument, value in zip(func._schema.arguments, args))


def _default_generator(args: tuple, kwargs: dict) -> torch.Generator:
    tensor = next((arg for arg in args if isinstance(arg, torch.Tensor)), None)
    device = torch.device(kwargs.get("device") or "cpu") if tensor is None else tensor.device
    if device.type != "cuda":
        return torch.default_generator
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]


def place_in_script() -> str:
    """Return the innermost frame outside torch and outside the trace, as "train.py:12 in f"."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN_FOLDERS):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} in {frame.f_code.co_name}"
