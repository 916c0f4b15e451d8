"""Every operator, forward and backward: recorded, and made comparable between runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from retrofit.distributed.ddp.gradients import in_backward
from retrofit.verify.trace.events import Record
from retrofit.verify.trace.output.cut_rows import CutRows
from retrofit.verify.trace.randomness.draws import RowDraws
from retrofit.verify.trace.randomness.rounding import RandomRounding
from retrofit.verify.trace.recorder import record_failure

from .collectives import describe_collective, is_collective
from .coupling import ForwardEvidence
from .numbers.float64 import in_float64
from .numbers.kinks import decided_at_kinks

Run = Callable[[tuple, dict], Any]
Reading = Callable[[Any, Run], Run]


def _as_it_is(func: Any, run: Run) -> Run:
    return run


class OperatorTrace(TorchDispatchMode):
    """Records collectives and what makes a mean over ranks differ; if `controlled`, also takes chance and rounding out.

    Controlled means: float32 is float64 (`numbers`), and what is drawn at random for a sample does not depend on the
    rank or on the other samples of its batch (`draws`). `record` takes events; `rows()` returns the seeds of the
    samples of the batch in hand, empty outside a batch; `reading(func, run)` is how to run an operator so that this is
    the batch that it reads, and `keys()` gives what a draw for its rows is made from. Enter it once, in the main
    thread; the backward of CUDA tensors, which runs in a thread of its own, is seen too.
    """

    supports_higher_order_operators = True
    lets_compile = False  # torch.compile compiles nothing under a mode that is not part of torch

    @classmethod
    def is_infra_mode(cls) -> bool:
        return cls.lets_compile

    def __init__(
        self,
        record: Record,
        controlled: bool,
        rows: Callable[[], list[int]],
        reading: Reading = _as_it_is,
        keys: Callable[[], list[int]] | None = None,
    ) -> None:
        super().__init__()
        self._record = record
        self._controlled = controlled
        self.widens = True  # if controlled: float32 becomes float64
        self.rounding = RandomRounding(0)
        self._reading = reading
        self.draws = RowDraws(record, rows, keys)
        self._evidence = ForwardEvidence(record, rows)
        self.cuts = CutRows(record)
        self.writes: Reading = _as_it_is  # watched for those to weights
        self.inputs: Reading = _as_it_is  # watched for what no batch has made
        self._runs: dict[Any, Run] = {}
        self._num_collectives = 0

    def new_batch(self) -> None:
        """Forget what was learnt about the layout of the last batch. Call it when the rows change."""
        self.draws.new_batch()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _silence.depth or (self.lets_compile and (_is_compiling() or _is_traced(args))):
            return func(*args, **(kwargs or {}))
        run = self._runs.get(func)
        if run is None:
            run = self._runs[func] = self._prepare(func)
        try:
            return run(args, kwargs or {})
        except Exception as error:
            return self._as_it_is(func, args, kwargs or {}, error)

    def _as_it_is(self, func: Any, args: Any, kwargs: Any, error: Exception) -> Any:
        """Run an operator that has failed as the script has called it: then the error is one of the trace."""
        if not isinstance(func, torch._ops.OpOverload) or is_collective(func):
            raise error
        try:
            result = func(*args, **kwargs)
        except Exception:
            raise error from None
        record_failure(error)
        return result

    def _prepare(self, func: Any) -> Run:
        """Return how this operator is to be run: found once, because it is asked for every operator."""

        def natural(args: tuple, kwargs: dict) -> Any:
            return func(*args, **kwargs)

        if not isinstance(func, torch._ops.OpOverload):
            return natural
        if is_collective(func):
            return self._collective(func)
        run: Run = natural
        if self._controlled:
            run = self.draws.controlled(func, run)
            in_precision = (
                in_float64(func, decided_at_kinks(func, run)) if self.widens else self.rounding.rounded(func, run)
            )
            run = self._reading(func, in_precision)
        run = self.inputs(func, self._evidence.watched(func, run))
        return self.writes(func, self.cuts.watched(func, run))

    def _collective(self, func: Any) -> Run:
        def run(args: tuple, kwargs: dict) -> Any:
            # Before the call: in a hang the last line is what the rank waits for.
            self._record(describe_collective(func, args, self._num_collectives, in_backward()))
            self._num_collectives += 1
            return func(*args, **kwargs)

        return run


def _is_compiling() -> bool:
    """Return whether a compiler is at work: it calls operators that have no arguments, too."""
    return torch._guards.TracingContext.try_get() is not None


def _is_traced(args: Any) -> bool:
    """Return whether a compiler calls an operator, with tensors that have no numbers."""
    return any(isinstance(one, FakeTensor) or (type(one) in (list, tuple) and _is_traced(one)) for one in args)


class _Silence(threading.local):
    depth = 0


_silence = _Silence()


@contextmanager
def untraced() -> Iterator[None]:
    """Run the block's operators as if there were no OperatorTrace: for what the trace itself computes."""
    _silence.depth += 1
    try:
        yield
    finally:
        _silence.depth -= 1
