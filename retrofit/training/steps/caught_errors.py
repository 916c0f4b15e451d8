"""Errors in a training step that a script survives: this process takes the next batch, the others wait for it."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from retrofit.analysis.python_api import EXITS
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis

from ..distributed.ranks.rank_guards import asks_for_group
from ..loops import LOOPS, Path
from .skipped_steps import statements_of

# Those that do not come from what is in a batch, or end the training of all: the same for every process.
COMMON = {
    "StopIteration", "KeyboardInterrupt", "SystemExit", "GeneratorExit", "ImportError", "ModuleNotFoundError",
    "AttributeError", "TypeError", "NotImplementedError", "NameError",
}  # fmt: skip
SUPPRESS = "contextlib.suppress"


@dataclass(frozen=True)
class Caught:
    """An `except` after which the training continues, or a `with suppress(...)`."""

    node: ast.ExceptHandler | ast.With
    scope: Scope


def caught_errors(analysis: Analysis, path: Path, runs: Collection[ast.AST]) -> Iterator[Caught]:
    """Yield what catches errors in the steps of a path: around the backward call, or around the calls `runs` before."""
    yield from _around(analysis, path)
    loop, frame = path.loops[0]
    around = set(frame.scope.source.ancestors(frame.node))
    for statement in statements_of(loop):
        if statement in around or not isinstance(statement, ast.Try):
            continue
        is_run = any(part in runs for inner in statement.body for part in ast.walk(inner))
        for handler in statement.handlers:
            if (is_run or _leaves_out(handler)) and _continues(analysis, handler, frame.scope):
                yield Caught(handler, frame.scope)


def _around(analysis: Analysis, path: Path) -> Iterator[Caught]:
    """Yield what stands around a backward call in the outermost loop; what is around that ends the training."""
    num_loops = len(path.loops)
    for frame in path.frames:
        inner: ast.AST = frame.node
        for node in frame.scope.source.ancestors(frame.node):
            num_loops -= node in frame.loops
            if node is frame.scope.node or not num_loops:
                break
            yield from _catching(analysis, node, inner, frame.scope)
            inner = node


def _catching(analysis: Analysis, node: ast.AST, inner: ast.AST, scope: Scope) -> Iterator[Caught]:
    if isinstance(node, ast.Try) and inner in node.body:
        yield from (Caught(handler, scope) for handler in node.handlers if _continues(analysis, handler, scope))
    elif isinstance(node, ast.With):
        calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
        for call in calls:
            if SUPPRESS in analysis.called(call, scope) and not _are_common(call.args):
                yield Caught(node, scope)


def _continues(analysis: Analysis, handler: ast.ExceptHandler, scope: Scope) -> bool:
    """Return whether the training continues after an `except`, without a look at the other processes."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type] if handler.type else []
    if (kinds and _are_common(kinds)) or _ends(handler.body):
        return False
    parts = [part for statement in handler.body for part in ast.walk(statement)]
    if any(isinstance(part, ast.If) and asks_for_group(part.test) for part in parts):
        return False
    names = {name for part in parts if isinstance(part, ast.Call) for name in analysis.called(part, scope)}
    return not any(name.startswith(("torch.distributed.", "retrofit.distributed.")) for name in names)


def _are_common(kinds: list[ast.expr]) -> bool:
    return all(ast.unparse(kind).rpartition(".")[2] in COMMON for kind in kinds)


def _leaves_out(handler: ast.ExceptHandler) -> bool:
    """Return whether an `except` continues with the next batch, or ends the loop over the batches."""
    waiting: list[ast.AST] = list(handler.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Continue, ast.Break, ast.Return)):
            return True
        if not isinstance(node, LOOPS):
            waiting += ast.iter_child_nodes(node)
    return False


def _ends(block: list[ast.stmt]) -> bool:
    """Return whether a block ends the process, or hands the error on, whatever it tests."""
    last = block[-1]
    if isinstance(last, ast.If):
        return bool(last.orelse) and _ends(last.body) and _ends(last.orelse)
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return ast.unparse(last.value.func) in EXITS
    return isinstance(last, ast.Raise)
