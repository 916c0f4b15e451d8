"""Steps of a training that a process leaves out by what is in its own batch, while the others wait for it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.calls.graph import functions_reached
from retrofit.analysis.flow.name_uses import stored_names
from retrofit.analysis.nodes import children, walk
from retrofit.analysis.python_api import GROWS_LIST
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.training.torch_api.data import NUMBERS
from retrofit.training.torch_api.distributed import AGREEING
from retrofit.training.torch_api.tensors import SHAPE_ATTRIBUTES, SHAPE_METHODS

from ..data.batch_values import BATCH, GRADIENT
from ..data.batches import numbers_in
from ..loops import LOOPS, Frame, LoopNode, Path
from ..losses.flow import loss_parts

if TYPE_CHECKING:
    from retrofit.training import Project

OF_STEPS = frozenset({"step", "grad", "data", "param_groups", "parameters", "state", "get_lr"})  # in an own method
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
    made = {node for node in walk(loop) if _is_step(analysis, node, frame.scope)}
    last = max((frame.scope.source.statement(node).lineno for node in made), default=0)
    own, filled = set(statements_of(loop)), set()  # lists that are filled with parts of the batch
    statements = (part for part in walk(loop) if isinstance(part, ast.stmt) and part is not loop)
    for node in sorted(statements, key=lambda statement: (statement.lineno, statement.col_offset)):
        filled |= _filled(node, batch)
        if node not in own:
            continue
        if isinstance(node, ast.Assign) and _names_outside_reads(node.value, losses) & (batch | filled):
            batch |= stored_names([node]) if not _of_all_ranks(analysis, node.value, frame.scope) else set()
        elif isinstance(node, ast.If) and _leaves_out(node, step, last, made):
            deciding = [part for part in walk(node.test) if isinstance(part, ast.Name) and part.id in batch]
            read = [part for part in walk(node.test) if _is_read(part, losses)]
            read += _of_all_ranks(analysis, node.test, frame.scope)
            deciding = [part for part in deciding if not any(part in walk(call) for call in read)]
            if deciding:
                is_loss = all(name.id in losses for name in deciding)
                yield Skip(node, frame.scope, tuple(deciding) if is_loss else ())


def _filled(node: ast.stmt, batch: set[str]) -> set[str]:
    """Return the name of a list that gets a part of the batch: `clips.append(out[i, :n])`."""
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr not in GROWS_LIST:
        return set()
    of_batch = any(isinstance(part, ast.Name) and part.id in batch for given in call.args for part in walk(given))
    return {call.func.value.id} if of_batch and isinstance(call.func.value, ast.Name) else set()


def early_returns(project: Project, path: Path) -> Iterator[Skip]:
    """Yield the decisions by entries of the batch after which a function returns before it computes gradients.

    Not those by the loss, which is made that of all processes, or by the number of samples.
    """
    loop, around = path.loops[0]
    losses = {(node.id, scope) for node, scope in loss_parts(project.analysis, path) if isinstance(node, ast.Name)}
    for frame in path.frames[: path.frames.index(around)] if isinstance(loop, ast.For) else ():
        inner = frame.scope.source.statement(frame.node)
        for node in own_nodes(frame.scope.node).of(ast.If):
            if node.lineno >= inner.lineno or inner in set(walk(node)):
                continue
            ends = any(isinstance(part, ast.Return) for branch in (node.body, node.orelse) for part in branch)
            if ends and _is_by_entries(project, node.test, frame.scope, losses):
                yield Skip(node, frame.scope, ())


def _is_by_entries(project: Project, test: ast.expr, scope: Scope, losses: set[tuple[str, Scope]]) -> bool:
    """Return whether a test is computed from entries of the batch: y.max() > 4, not `batch is None`, len(batch) < 2."""
    if any(isinstance(part, (ast.Is, ast.IsNot)) for part in walk(test)):
        return False
    sized = {name for part in walk(test) if _is_of_size(part) for name in walk(part)}
    agreed = {name for call in _of_all_ranks(project.analysis, test, scope) for name in walk(call)}
    names = [n for n in walk(test) if isinstance(n, ast.Name) and n not in sized | agreed]
    names = [name for name in names if (name.id, scope) not in losses]
    found = [project.batch_values.sources_of(name, scope) for name in names]
    return any(BATCH in sources and GRADIENT not in sources for sources in found)


def _is_of_size(node: ast.AST) -> bool:
    named = node.attr if isinstance(node, ast.Attribute) else last_name(node) if isinstance(node, ast.Call) else ""
    return named in SHAPE_ATTRIBUTES | SHAPE_METHODS | {"len", "isinstance"}


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


def _leaves_out(node: ast.If, backward: ast.stmt, last_step: int, steps: set[ast.AST]) -> bool:
    """Return whether a branch leaves the batch, or computes gradients or makes a step that the other one does not."""
    is_before = node.lineno < backward.lineno
    if is_before or node.lineno < last_step:
        ends = (ast.Continue, ast.Break) if is_before else (ast.Continue,)
        if any(isinstance(statement, ends) for statement in (*node.body, *node.orelse)):
            return True
    branches = ({part for statement in branch for part in walk(statement)} for branch in (node.body, node.orelse))
    first, other = (_computes_gradients(parts) if is_before else bool(parts & steps) for parts in branches)
    return first != other


def _computes_gradients(parts: set[ast.AST]) -> bool:
    return any(isinstance(part, ast.Attribute) and part.attr == "backward" for part in parts)


def _is_step(analysis: Analysis, node: ast.AST, scope: Scope) -> bool:
    """Return whether this is optimizer.step(), or a step of a schedule or of what scales the gradients.

    A method of the project that sets no weights and no rates is not: early_stopping.step(loss).
    """
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "step":
        return False
    functions = list(functions_reached(analysis, [(node, scope)]))
    parts = (part for function in functions for part in own_nodes(function.node))
    return not functions or any(isinstance(part, ast.Attribute) and part.attr in OF_STEPS for part in parts)


def incomplete_batches(project: Project) -> Iterator[tuple[ast.If, ast.expr, Scope]]:
    """Yield `if len(images) < batch_size: continue`: of the last batch one process may have less than another."""
    loops = {path.loops[0][0] for path in project.paths}
    for node, scope in project.in_batches.of(ast.If):
        if scope.source.parents[node] not in loops or not _compares(node.test):
            continue
        assert isinstance(node.test, ast.Compare)
        for part in (node.test.left, *node.test.comparators):
            if (part, scope) in project.batch_sizes and isinstance(node.body[-1], (ast.Continue, ast.Break)):
                yield node, part, scope


def batches_of_one(project: Project) -> Iterator[tuple[ast.If, ast.expr, Scope]]:
    """Yield `if len(images) == 1: continue`, by which a training leaves out what batch normalisation cannot take.

    With the number of samples: of the last batch one process may have one, where all together have several.
    """
    for path in project.paths:
        tests = [(s.node, s.scope) for s in skips(project.analysis, path) if not s.losses]
        loop, around = path.loops[0]
        tests = [place for place in tests if place[1].source.parents[place[0]] is loop]
        tests += [place for frame in path.frames[: path.frames.index(around)] for place in _returning(frame)]
        for node, scope in tests:
            given = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
            counts = [_few(project, test, scope) for test in given]
            yield from ((node, count, scope) for count in counts if count is not None and None not in counts)


def tests_of_one(project: Project) -> set[ast.expr]:
    """Return the tests of `batches_of_one`, which all processes decide in the same way."""
    return project.analysis.fact("tests of one", lambda: {node.test for node, _, _ in batches_of_one(project)})


def _few(project: Project, test: ast.expr, scope: Scope) -> ast.expr | None:
    """Return the number of samples in `len(images) == 1`; all of `batch.batch[-1] == 0`, of a batch of one graph."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    if isinstance(test.ops[0], ast.Eq) and ast.unparse(test).endswith(".batch[-1] == 0"):
        return test if BATCH in project.batch_values.sources_of(test.left, scope) else None
    for size, other in ((test.left, test.comparators[0]), (test.comparators[0], test.left)):
        is_few = isinstance(other, ast.Constant) and other.value in (1, 2)
        if is_few and _counts_rows(project, size, scope):
            return size
    return None


def _returning(frame: Frame) -> Iterator[tuple[ast.If, Scope]]:
    """Yield the tests of a function after which it returns before it computes gradients."""
    inner = frame.scope.source.statement(frame.node)
    body = getattr(frame.scope.node, "body", ())
    for node in body if isinstance(body, list) else ():  # that of a lambda is an expression
        if isinstance(node, ast.If) and node.lineno < inner.lineno and isinstance(node.body[-1], ast.Return):
            yield node, frame.scope


def _counts_rows(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether this is len(images), images.size(0) or images.shape[0], of a part of the batch."""
    whole: ast.expr | None = None
    if isinstance(node, ast.Call) and len(node.args) == 1:
        is_first = isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
        whole = node.args[0] if isinstance(node.func, ast.Name) and node.func.id == "len" else None
        if isinstance(node.func, ast.Attribute) and node.func.attr == "size" and is_first:
            whole = node.func.value
    elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
        is_first = isinstance(node.slice, ast.Constant) and node.slice.value == 0
        whole = node.value.value if is_first else None
    if whole is None or BATCH not in project.batch_values.sources_of(whole, scope):
        return False
    given = {binding.kind for binding in scope.bindings.get(whole.id, [])} if isinstance(whole, ast.Name) else set()
    targets = {path.loops[0][0].target.id for path in project.paths if _has_one_target(path.loops[0][0])}  # type: ignore[union-attr]
    return "parameter" not in given and getattr(whole, "id", "") not in targets  # these may be tuples of tensors


def _has_one_target(loop: LoopNode) -> bool:
    return isinstance(loop, ast.For) and isinstance(loop.target, ast.Name)


def _compares(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.NotEq, ast.Lt, ast.Gt))
