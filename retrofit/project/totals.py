"""What a training loop adds up over its batches, to be read when the epoch is over."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from .analysis import Analysis
from .batch_sizes import BatchSizes
from .evaluation import METER, SUM, Accumulator
from .evaluation.afterwards import Afterwards
from .evaluation.loop import Loop, NotShareable
from .evaluation.meters import meter_of
from .loaders import TRAIN, Loader
from .scopes import Scope
from .training import Path, calls_without_training, phase_of
from .values import Instance, LocalFunction

COUNTING = {"size", "numel", "sum", "count_nonzero", "bincount", "nelement"}  # methods that grow with the batch
KEEPING = {"item", "float", "double", "int", "long", "cpu", "numpy", "detach", "data", "to", "tolist"}
MOST_STEPS = 20


@dataclass(frozen=True)
class Totals:
    """A training loop and what it adds up, of the share of one process.

    A loop that evaluates as well, on all samples, has the expression of its loader in `loader`. `sizes` are where the
    batch size stands for the samples of the batch in hand: `total += batch_size`.
    """

    loop: ast.For
    scope: Scope
    accumulators: tuple[Accumulator, ...]
    loader: ast.expr | None = None
    sizes: tuple[ast.expr, ...] = ()


def find_totals(analysis: Analysis, paths: list[Path], loaders: list[Loader], batch_sizes: BatchSizes) -> list[Totals]:
    """Return the loops over training batches with their totals."""
    uses = {use.loop: use.scope for loader in loaders for use in loader.uses if use.role == TRAIN}
    phases = {loop for path in paths for loop in phase_of(path)}
    silent = {function.node for call in calls_without_training(analysis, paths) for function in _called(analysis, call)}
    found: dict[ast.For, Totals] = {}
    for path in paths:
        loop, frame = path.loops[0]
        if loop in found or loop not in uses or not isinstance(loop, ast.For):
            continue
        drawn = Loop(analysis, loop, frame.scope, frozenset()).loader()
        is_both = loop in phases or frame.scope.node in silent
        if not is_both or drawn is not None:
            reader = _Reader(analysis, loop, frame.scope, batch_sizes)
            accumulators = tuple(reader.totals())
            whole = drawn[1] if is_both and drawn else None
            sizes = tuple(reader.sizes(accumulators))
            if whole is None or not sizes:  # of the whole set a batch is another size than of a share
                found[loop] = Totals(loop, frame.scope, accumulators, whole, sizes)
    return [totals for totals in found.values() if totals.accumulators]


def _called(analysis: Analysis, call: ast.Call) -> Iterator[LocalFunction]:
    for source in analysis.modules.sources.values():
        if call in source.parents:
            yield from analysis.functions_called(call, analysis.scope_at(source, call))


class _Reader:
    def __init__(self, analysis: Analysis, loop: ast.For, scope: Scope, batch_sizes: BatchSizes) -> None:
        self.analysis, self.loop, self.scope, self.batch_sizes = analysis, loop, scope, batch_sizes
        self.afterwards = Afterwards(Loop(analysis, loop, scope, frozenset()), set())

    def totals(self) -> Iterator[Accumulator]:
        seen: dict[str, Accumulator | None] = {}
        for node in ast.walk(self.loop):
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.Expr)):
                for text, accumulator in self._changed(node):
                    is_new = text not in seen or seen[text] == accumulator
                    seen[text] = accumulator if is_new else None
        return (a for a in seen.values() if a is not None and self._is_whole(a))

    def sizes(self, accumulators: tuple[Accumulator, ...]) -> Iterator[ast.expr]:
        """Yield the batch sizes in what is added to these sums."""
        sums = {ast.unparse(accumulator.target) for accumulator in accumulators if accumulator.kind == SUM}
        for node in ast.walk(self.loop):
            if isinstance(node, ast.AugAssign) and ast.unparse(node.target) in sums:
                yield from (
                    part
                    for part in ast.walk(node.value)
                    if isinstance(part, ast.expr) and (part, self.scope) in self.batch_sizes
                )

    def _changed(self, node: ast.Assign | ast.AugAssign | ast.Expr) -> Iterator[tuple[str, Accumulator | None]]:
        """Yield what a statement changes, with how it accumulates; None where it does something else with it."""
        if isinstance(node, ast.AugAssign):
            if isinstance(node.target, ast.Name):
                is_total = isinstance(node.op, ast.Add) and self._degree(node.value) == 1
                yield node.target.id, self._sum(node.target) if is_total else None
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                yield from ((part.id, None) for part in ast.walk(target) if isinstance(part, ast.Name))
        elif isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
            receiver = node.value.func.value
            instances = [v for v in self.analysis.evaluate(receiver, self.scope) if isinstance(v, Instance)]
            if instances:
                meter = meter_of(self.analysis, instances[0], node.value.func.attr)
                yield ast.unparse(receiver), Accumulator(METER, receiver, meter) if meter is not None else None

    def _sum(self, target: ast.Name) -> Accumulator:
        return Accumulator(SUM, ast.Name(target.id, ast.Load()))

    def _is_whole(self, accumulator: Accumulator) -> bool:
        """Return whether an accumulator starts from zero and something behind the loop reads it."""
        try:
            self.afterwards.require_fresh(accumulator)
            return self.afterwards.is_read_later(accumulator)
        except NotShareable:
            return False

    def _degree(self, node: ast.expr, depth: int = 0) -> int:
        """Return with which power of the number of samples a value grows: 0 for a mean, 1 for a sum or a count."""
        if depth > MOST_STEPS:
            return 0
        below = depth + 1
        if isinstance(node, ast.BinOp):
            left, right = self._degree(node.left, below), self._degree(node.right, below)
            if isinstance(node.op, ast.Mult):
                return left + right
            return left - right if isinstance(node.op, (ast.Div, ast.FloorDiv)) else max(left, right)
        if (node, self.scope) in self.batch_sizes:
            return 1
        if isinstance(node, ast.Name):
            values = [value for value in self._assigned(node.id)]
            return self._degree(values[0], below) if len(values) == 1 else 0
        if isinstance(node, ast.Subscript):
            is_shape = isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
            return 1 if is_shape and isinstance(node.slice, ast.Constant) and node.slice.value == 0 else 0
        if not isinstance(node, ast.Call):
            return 0
        if any(keyword.arg == "reduction" and _is_text(keyword.value, "sum") for keyword in node.keywords):
            return 1
        names = self.analysis.called(node, self.scope)
        if names & {"len", "torch.sum", "torch.count_nonzero"}:
            return 1
        if names & {"float", "int"} and node.args:
            return self._degree(node.args[0], below)
        if not isinstance(node.func, ast.Attribute):
            return 0
        if node.func.attr in COUNTING:
            return 1
        return self._degree(node.func.value, below) if node.func.attr in KEEPING else 0

    def _assigned(self, name: str) -> Iterator[ast.expr]:
        for node in ast.walk(self.loop):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name) and target.id == name:
                        yield node.value


def _is_text(node: ast.expr, text: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == text
