"""Steps of a training that a process leaves out by what is in its own batch, while the others wait for it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from retrofit.analysis.flow.name_uses import stored_names
from retrofit.analysis.nodes import children, walk
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.training.torch_api.data import NUMBERS
from retrofit.training.torch_api.distributed import AGREEING

from ..data.batches import numbers_in
from ..loops import LOOPS, LoopNode, Path

KEEPS_VALUE = ("detach", "cpu", "mean")  # of a loss, which has one element


@dataclass(frozen=True)
class Skip:
    """An `if` that decides by the batch whether a step is made; `losses` where by the loss alone."""

    node: ast.If
    scope: Scope
    losses: tuple[ast.Name, ...]


def skips(analysis: Analysis, path: Path) -> Iterator[Skip]:
    """Yield the decisions on a path that each process takes by its own batch."""
    loop, frame = path.loops[0]
    if not isinstance(loop, ast.For):
        return
    step, losses = frame.scope.source.statement(frame.node), loss_names(frame.node)
    batch = _batch_names(analysis, loop, frame.scope)
    last = max((frame.scope.source.statement(node).lineno for node in walk(loop) if _is_step(node)), default=0)
    for node in sorted(statements_of(loop), key=lambda statement: (statement.lineno, statement.col_offset)):
        if isinstance(node, ast.Assign) and _names_outside_reads(node.value, losses) & batch:
            batch |= stored_names([node]) if not _of_all_ranks(analysis, node.value, frame.scope) else set()
        elif isinstance(node, ast.If) and _leaves_out(node, step, last):
            deciding = [part for part in walk(node.test) if isinstance(part, ast.Name) and part.id in batch]
            read = [part for part in walk(node.test) if _is_read(part, losses)]
            read += _of_all_ranks(analysis, node.test, frame.scope)
            deciding = [part for part in deciding if not any(part in walk(call) for call in read)]
            if deciding:
                is_loss = all(name.id in losses for name in deciding)
                yield Skip(node, frame.scope, tuple(deciding) if is_loss else ())


def loss_names(call: ast.AST) -> set[str]:
    """Return the loss in `loss.backward()` and `scaler.scale(loss).backward()`; nothing for another call."""
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != "backward":
        return set()
    node = call.func.value
    while isinstance(node, ast.Call) and len(node.args) == 1:
        node = node.args[0]
    return {node.id} if isinstance(node, ast.Name) else set()


def _is_read(node: ast.AST, losses: set[str]) -> bool:
    """Return whether this is `loss.item()`, which is made that of all processes where it is written."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "item":
        return False
    value = node.func.value
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in KEEPS_VALUE:
        value = value.func.value
    return isinstance(value, ast.Name) and value.id in losses


def _names_outside_reads(node: ast.expr, losses: set[str]) -> set[str]:
    """Return the names that an expression loads, but for those in `loss.item()`."""
    reads = {name for part in walk(node) if _is_read(part, losses) for name in walk(part)}
    return {part.id for part in walk(node) if isinstance(part, ast.Name) and part not in reads}


def _of_all_ranks(analysis: Analysis, node: ast.expr, scope: Scope) -> list[ast.Call]:
    """Return the calls in an expression that give every rank the same: rd.reduce_loss(loss)."""
    calls = (part for part in walk(node) if isinstance(part, ast.Call))
    return [call for call in calls if analysis.called(call, scope) & AGREEING]


def _batch_names(analysis: Analysis, loop: ast.For, scope: Scope) -> set[str]:
    """Return the names of what a loop draws, also by next(), without the number of the batch."""
    counts = isinstance(loop.target, ast.Name) and _calls(loop.iter, {name.rpartition(".")[2] for name in NUMBERS})
    target = set() if counts else stored_names([loop.target]) - numbers_in(analysis, loop, scope)
    fetching = [node for node in statements_of(loop) if isinstance(node, ast.Assign) and _calls(node.value, {"next"})]
    return target | stored_names(fetching)


def _calls(node: ast.expr, names: set[str]) -> bool:
    return any(isinstance(part, ast.Call) and getattr(part.func, "id", "") in names for part in walk(node))


def statements_of(loop: LoopNode) -> Iterator[ast.stmt]:
    """Yield the statements of a loop, without those of loops inside it."""
    waiting: list[ast.AST] = list(loop.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.stmt):
            yield node
        if not isinstance(node, LOOPS):
            waiting += children(node)


def _leaves_out(node: ast.If, backward: ast.stmt, last_step: int) -> bool:
    """Return whether a branch leaves the batch, or computes gradients or makes a step that the other one does not."""
    is_before = node.lineno < backward.lineno
    if is_before or node.lineno < last_step:
        ends = (ast.Continue, ast.Break) if is_before else (ast.Continue,)
        if any(isinstance(statement, ends) for statement in (*node.body, *node.orelse)):
            return True
    does = _computes_gradients if is_before else _makes_step
    return does(node.body) != does(node.orelse)


def _computes_gradients(branch: list[ast.stmt]) -> bool:
    parts = (part for statement in branch for part in walk(statement))
    return any(isinstance(part, ast.Attribute) and part.attr == "backward" for part in parts)


def _makes_step(branch: list[ast.stmt]) -> bool:
    return any(_is_step(part) for statement in branch for part in walk(statement))


def _is_step(node: ast.AST) -> bool:
    """Return whether this is optimizer.step(), or a step of a schedule or of what scales the gradients."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "step"
