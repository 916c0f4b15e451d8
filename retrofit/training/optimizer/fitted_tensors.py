"""Optimizations of tensors that belong to one batch: latents that are fitted to it, noise that is added to it.

`z = torch.zeros(len(x), 8, requires_grad=True); optimizer = Adam([z])`, and some steps of it for each batch `x`. No
weight is trained: the rows of `z` are the samples' own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from retrofit.analysis.calls import CallSite, argument_for, last_name
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import FUNCTIONS, own_nodes, parameters
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Result

from ..loops import Frame, LoopNode, Path, backward_paths
from ..model.gradients import takes_step

COUNTING = {"range", "trange", "count"}


def without_fitted(analysis: Analysis, paths: list[Path]) -> list[Path]:
    """Leave out the ways to backward calls that change tensors of one batch, but for those in a step of a training."""
    fitted = {path: loop for path, (loop, _) in _fitted(analysis).items()}
    others = {loop for path in paths if path not in fitted for loop, _ in path.loops}
    return [path for path in paths if path not in fitted or fitted[path] in others]


def fitting_optimizers(analysis: Analysis) -> set[ast.Call]:
    """Return the calls that make optimizers of such tensors."""
    return {call for _, calls in _fitted(analysis).values() for call in calls}


def _fitted(analysis: Analysis) -> dict[Path, tuple[LoopNode, frozenset[ast.Call]]]:
    def compute() -> dict[Path, tuple[LoopNode, frozenset[ast.Call]]]:
        found = {path: _fitted_by(analysis, path) for path in backward_paths(analysis)}
        return {path: fitted for path, fitted in found.items() if fitted is not None}

    return analysis.fact("tensors of single batches", compute)  # type: ignore[no-any-return]


def _fitted_by(analysis: Analysis, path: Path) -> tuple[LoopNode, frozenset[ast.Call]] | None:
    """Return the loop over the batches to each of which a tensor of its own is fitted, and the optimizers that do so.

    None where the steps after a backward call change anything else.
    """
    found: dict[ast.AST | None, LoopNode | None] = {}
    loop, frame = path.loops[0]
    for call in (node for node in walk(loop) if isinstance(node, ast.Call)):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "step":
            made = [value for value in analysis.evaluate(call.func.value, frame.scope) if isinstance(value, Result)]
            found.update({value.call: _loop_of(value, path) for value in made} or {None: None})  # type: ignore[dict-item]
    if not takes_step(analysis, loop, frame.scope):  # z.data -= rate * z.grad
        number = path.frames.index(frame)
        reads = (node for node in walk(loop) if isinstance(node, ast.Attribute) and node.attr == "grad")
        found = {node: _around(node.value, number, path) for node in reads}
    loops = {outer for outer in found.values() if outer is not None}
    is_settled = len(loops) == 1 and None not in found.values()
    return (loops.pop(), frozenset(node for node in found if isinstance(node, ast.Call))) if is_settled else None


def _loop_of(optimizer: Result, path: Path) -> LoopNode | None:
    """Return the loop that gives the batch of which all that an optimizer changes depends, None for another one."""
    given = argument_for(optimizer.call, ["params"], "params")
    places = [number for number, frame in enumerate(path.frames) if frame.scope is optimizer.scope]
    if not isinstance(given, (ast.List, ast.Tuple)) or not given.elts or not places:
        return None
    loops = {_around(part, places[0], path) for part in given.elts}
    return loops.pop() if len(loops) == 1 else None


def _around(tensor: ast.expr, number: int, path: Path) -> LoopNode | None:
    """Return the loop whose batch a tensor is made for, where the loops inside of it only count."""
    loop = _drawn_by(tensor, number, path)
    order = [inner for inner, _ in path.loops]
    return loop if loop is not None and all(_counts(inner) for inner in order[: order.index(loop)]) else None


def _counts(loop: LoopNode) -> bool:
    """Return whether a loop draws nothing: `for _ in range(steps)`, `while True`."""
    if isinstance(loop, ast.While):
        return True
    return any(isinstance(node, ast.Call) and last_name(node) in COUNTING for node in walk(loop.iter))


def _drawn_by(start: ast.expr, number: int, path: Path) -> LoopNode | None:
    """Return the loop around a backward call whose variable a tensor is made from, in the frame `number` or outside."""
    waiting, seen = [(start, number)], set()
    while waiting:
        node, number = waiting.pop(0)
        if (node, number) in seen or any(isinstance(p, ast.Attribute) and p.attr == "parameters" for p in walk(node)):
            continue
        seen.add((node, number))
        if isinstance(node, ast.Attribute):  # self.z
            waiting += [(value, number) for value in _assigned(ast.unparse(node), path.frames[number])]
        for name in (part.id for part in walk(node) if isinstance(part, ast.Name)):
            for loop in path.frames[number].loops:
                if not isinstance(loop, ast.While) and not _counts(loop) and name in _names(loop.target):
                    return loop
            waiting += _before(name, number, path)
    return None


def _assigned(text: str, frame: Frame) -> Iterator[ast.expr]:
    """Yield what an attribute is assigned in a function."""
    for node in own_nodes(frame.scope.node).of(ast.Assign):
        if text in map(ast.unparse, node.targets):
            yield node.value


def _names(target: ast.expr) -> set[str]:
    return {part.id for part in walk(target) if isinstance(part, ast.Name)}


def _before(name: str, number: int, path: Path) -> Iterator[tuple[ast.expr, int]]:
    """Yield what a name is assigned in a function, or given as its parameter."""
    frame = path.frames[number]
    for binding in frame.scope.bindings.get(name, []):
        if binding.kind == "value" and binding.value is not None:
            yield binding.value, number
    function = frame.scope.node
    if isinstance(function, FUNCTIONS) and name in parameters(function):
        yield from ((given, number + 1) for given in _arguments(name, path.frames[number + 1 :][:1], frame))


def _arguments(name: str, outer: Iterable[Frame], frame: Frame) -> Iterator[ast.expr]:
    for caller in outer:
        if isinstance(caller.node, ast.Call):
            function = frame.scope.node
            names = parameters(function)  # type: ignore[arg-type]
            is_bound = names[:1] == ["self"] and isinstance(caller.node.func, ast.Attribute)
            given = CallSite(caller.node, caller.scope).argument(names[is_bound:], name)
            if given is not None:
                yield given[0]
