"""Trainings that end after a number of steps, not of epochs: N processes see N times the samples in as many steps."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name, returns_of
from retrofit.analysis.files.source import Place
from retrofit.analysis.flow.bindings import bindings_of
from retrofit.analysis.flow.calls.graph import nodes_run
from retrofit.analysis.nodes import walk
from retrofit.analysis.python_api import EXITS
from retrofit.analysis.scopes import Scope, own_nodes

from ...data.drawn import loaders_in
from ...data.draws.draw import RANDOM
from ...data.loaders import TRAIN
from ...loops import Frame, LoopNode
from ...optimizer.counted_draws import counted_draws
from ...optimizer.loop_ends import has_loader_length, is_endless, range_end
from ...optimizer.schedules import single_process_sizes, sizes_of_steps

if TYPE_CHECKING:
    from ... import Project

ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
LEAVING = (ast.Break, ast.Return, ast.Raise)
Bound = tuple[ast.expr, ast.expr, Scope]  # a number of steps, and the place that says that a training ends by it
ACCUMULATION = ("accum", "micro")  # in the names of what counts the micro batches of one step


@dataclass(frozen=True)
class StepLimit:
    """Where a training ends by the number of its steps, and the expression of that number."""

    source_line: str
    place: Place
    bound: str

    @property
    def text(self) -> str:
        """What it means for several processes, in one line."""
        return (
            f"the training counts steps ({self.bound}), not epochs: N processes see N times the samples in them; for "
            "the same training in less time keep the total batch (RETROFIT_BATCH=global), or divide this number and "
            "the steps of the learning rate's schedule by WORLD_SIZE"
        )


def step_limits(project: Project) -> list[StepLimit]:
    """Return where the training ends by a number of steps; empty for one over epochs, or distributed by hand."""
    if project.distribution.is_by_hand:
        return []
    found = {limit.place: limit for path in project.paths for limit in _of_path(project, path.loops)}
    return list(found.values())


def _of_path(project: Project, loops: list[tuple[LoopNode, Frame]]) -> Iterator[StepLimit]:
    is_in_pass = any(_is_pass(project, loop, frame.scope) for loop, frame in loops)
    around = project.analysis.fact("loops around passes", lambda: _around_passes(project))
    called = list(_limits_in_calls(project, loops))
    for loop, frame in loops:
        limits = [*_limits(project, loop, frame.scope, is_in_pass or loop in around), *called]
        for bound, node, scope in limits:
            yield _limit(scope, node, ast.unparse(bound))
        if limits or _follows_loader(project, loop, frame.scope):
            return


def _around_passes(project: Project) -> set[LoopNode]:
    """Return the loops whose turns have a pass in them, which count epochs: an attack in an evaluation makes none."""
    found: set[LoopNode] = set()
    for path in project.paths:
        is_pass = [_is_pass(project, loop, frame.scope) for loop, frame in path.loops]
        found.update(loop for i, (loop, _) in enumerate(path.loops) if any(is_pass[:i]))
    return found


def _limits(project: Project, loop: LoopNode, scope: Scope, in_passes: bool) -> Iterator[Bound]:
    """Yield the numbers of steps after which a loop ends, each with the place that says so.

    `in_passes`: a loop over a loader is on the way, so that other loops count passes, and only a counter of steps ends
    them.
    """
    if isinstance(loop, (ast.For, ast.AsyncFor)):
        bound = range_end(project, loop.iter, scope)
        is_of_passes = in_passes and not _divides_by_loader(project, bound, scope)
        is_inside = (loop, scope) in project.analysis.fact("nodes run in passes", lambda: _run_in_passes(project))
        is_known = is_of_passes or is_inside or (bound, scope) in counted_draws(project)
        if bound is not None and not (is_known or _is_other_count(project, bound, scope)):
            yield bound, loop.iter, scope
    elif not in_passes or not isinstance(loop.test, (ast.Name, ast.Constant)):
        yield from _compared(project, loop.test, scope)
    for node in walk(loop):
        if isinstance(node, ast.If) and any(_leaves(project, part, scope) for part in node.body):
            yield from _compared(project, node.test, scope)


def _limits_in_calls(project: Project, loops: list[tuple[LoopNode, Frame]]) -> Iterator[Bound]:
    """Yield the numbers of steps by which what is run for a batch ends the process, or sets what ends a loop."""
    flags = {name for loop, frame in loops for name in _flags(project, loop, frame.scope)}
    for node, scope in project.in_batches.of(ast.If):
        if any(_ends(project, part, scope, flags) for part in node.body):
            yield from _compared(project, node.test, scope)


def _flags(project: Project, loop: LoopNode, scope: Scope) -> Iterator[str]:
    """Yield the names of what a loop ends by: `while not self.done`, `if stop: break`."""
    tests = [node.test for node in walk(loop) if isinstance(node, ast.If) and isinstance(node.body[-1], LEAVING)]
    tests += [loop.test] if isinstance(loop, ast.While) else []
    for part in (part for test in tests for part in walk(test)):
        if isinstance(part, (ast.Name, ast.Attribute)):
            yield last_name(part)


def _leaves(project: Project, statement: ast.stmt, scope: Scope) -> bool:
    """Return whether a statement ends a loop: break, return, raise, sys.exit()."""
    return isinstance(statement, LEAVING) or _ends(project, statement, scope, set())


def _ends(project: Project, statement: ast.stmt, scope: Scope, flags: set[str]) -> bool:
    """Return whether a statement ends the process, or sets one of some names to True or False."""
    if isinstance(statement, ast.Assign):
        is_set = isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, bool)
        return is_set and any(last_name(target) in flags for target in statement.targets)
    call = statement.value if isinstance(statement, ast.Expr) else getattr(statement, "exc", None)
    if isinstance(call, ast.Name):
        return call.id == "SystemExit"
    return isinstance(call, ast.Call) and bool(project.analysis.called(call, scope) & (EXITS | {"SystemExit"}))


def _run_in_passes(project: Project) -> set[tuple[ast.AST, Scope]]:
    """Return every node that is run in a loop once over a training loader, in functions that it calls too."""
    loops = {(loop, frame.scope) for path in project.paths for loop, frame in path.loops}
    return set(nodes_run(project.analysis, [(loop, scope) for loop, scope in loops if _is_pass(project, loop, scope)]))


def _compared(project: Project, test: ast.expr, scope: Scope) -> Iterator[Bound]:
    """Yield what a test compares a counter of steps with, also in a function that it calls: `if self.is_over():`."""
    for node, where in ((node, where) for part, where in _tested(project, test, scope) for node in walk(part)):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ORDERS):
            left, right = node.left, node.comparators[0]
            for counter, bound in ((left, right), (right, left)):
                is_zero = isinstance(bound, ast.Constant) and bound.value in (0, None)
                if is_zero or not counts_steps(project, counter, where) or counts_steps(project, bound, where):
                    continue
                if not _is_other_count(project, bound, where):
                    yield bound, test, scope


def _tested(project: Project, test: ast.expr, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield a test, what a name in its place is set to, and what a function in its place returns."""
    yield test, scope
    inner = test.operand if isinstance(test, ast.UnaryOp) else test
    if isinstance(inner, ast.Call):
        for function in project.analysis.functions_called(inner, scope):
            yield from ((value, function.scope) for value in returns_of(function.node))
    elif isinstance(inner, (ast.Name, ast.Attribute)):
        made = bindings_of(project.analysis, inner, scope)
        yield from ((binding.value, where) for binding, where in made if binding.value is not None)


def counts_steps(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether a variable grows by one for every batch, or numbers the batches of an endless loader."""
    if isinstance(node, ast.BinOp):  # step + 1; how long ago another step was is not a number of steps
        return isinstance(node.right, ast.Constant) and counts_steps(project, node.left, scope)
    counters = project.analysis.fact("counters of steps", lambda: _counters(project))
    held = bindings_of(project.analysis, node, scope) if isinstance(node, ast.Name) else []  # step = self.model.step
    of_objects = [node, *(binding.value for binding, _ in held if not binding.path)]
    if any(isinstance(value, ast.Attribute) and f".{value.attr}" in counters for value in of_objects):
        return True
    return ast.unparse(node) in counters


def _counters(project: Project) -> set[str]:
    found, set_back = set(), set()
    batches = [path.loops[0] for path in project.paths]
    in_steps = (node for path in project.paths for node in _around_micro_batches(project, path.loops))
    for node in (*(node for node, _ in project.in_batches), *in_steps):
        found |= {_counted(node)} - {""}
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Constant, ast.List)):
            texts = [ast.unparse(target) for target in node.targets]
            set_back |= {*texts, *(f"len({text})" for text in texts)}
    numbered = {ast.unparse(loop.target) for loop, f in batches if _is_numbered(project, loop, f.scope)}  # type: ignore[union-attr]
    for loop, frame in batches:
        has_no_end = isinstance(loop, ast.For) and not _is_pass(project, loop, frame.scope)
        if has_no_end and isinstance(loop.target, ast.Tuple) and last_name(loop.iter) == "enumerate":  # type: ignore[union-attr]
            found.add(ast.unparse(loop.target.elts[0]))  # type: ignore[union-attr]
    inner = {ast.unparse(loop.target) for loop, _ in batches if isinstance(loop, ast.For)}
    counters = (found - inner | numbered) - set_back
    of_objects = {f".{text.rpartition('.')[2]}" for text in counters if "." in text}
    return counters | of_objects  # trainer.step is self.step in a method


def _counted(node: ast.AST) -> str:
    """Return what is made larger: `step += 1`, `step = step + 1`, len(losses) by losses.append(...); "" for nothing."""
    if isinstance(node, ast.AugAssign):
        return ast.unparse(node.target) if isinstance(node.op, ast.Add) and _is_constant(node.value) else ""
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Add):
        target, left, right = ast.unparse(node.targets[0]), node.value.left, node.value.right
        is_added = (ast.unparse(left) == target and _is_constant(right)) or (
            ast.unparse(right) == target and _is_constant(left)
        )
        return target if is_added else ""
    is_appended = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append"
    return f"len({ast.unparse(node.func.value)})" if is_appended else ""  # type: ignore[attr-defined]


def _is_constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant)


def _is_numbered(project: Project, loop: LoopNode, scope: Scope) -> bool:
    """Return whether a loop counts without an end: for step in itertools.count()."""
    iterated = loop.iter if isinstance(loop, ast.For) else None
    return isinstance(iterated, ast.Call) and "itertools.count" in project.analysis.called(iterated, scope)


def _around_micro_batches(project: Project, loops: list[tuple[LoopNode, Frame]]) -> Iterator[ast.AST]:
    """Yield the nodes of the loop over steps around `for micro in range(n)`, of whose batches each is made."""
    (inner, frame), outer = loops[0], loops[1][0] if len(loops) > 1 else None
    if outer is None or not isinstance(inner, ast.For) or range_end(project, inner.iter, frame.scope) is None:
        return
    if _makes_step(outer) and not _makes_step(inner) and not _is_pass(project, inner, frame.scope):
        yield from walk(outer)


def _makes_step(loop: LoopNode) -> bool:
    return any(isinstance(part, ast.Call) and last_name(part) == "step" for part in walk(loop))


def _is_pass(project: Project, loop: LoopNode, scope: Scope) -> bool:
    """Return whether a loop goes once over a training loader, or over the slices of the data."""
    if isinstance(loop, (ast.For, ast.AsyncFor)) and _is_over_slices(project, loop, scope):
        return True
    uses = [use for loader in project.loaders if TRAIN in loader.roles for use in loader.uses if use.loop is loop]
    if isinstance(loop, ast.While) or not uses:  # while batch is not None: ... batch = prefetcher.next()
        return bool(uses) and any(isinstance(part, ast.IsNot) for part in walk(loop.test))  # type: ignore[union-attr]
    gone_through = {part for node in _gone_through(project, loop, scope) for part in walk(node)}
    is_over_loader = any(use.expression in gone_through for use in uses)  # and does not draw from it by next()
    return is_over_loader and not is_endless(project, loop.iter, scope)


def _gone_through(project: Project, loop: ast.For | ast.AsyncFor, scope: Scope) -> Iterator[ast.expr]:
    """Yield what a loop goes through, what the names in it mean, `bar = tqdm(loader)`, and the loaders where made."""
    yield loop.iter
    yield from (made for made, _ in loaders_in(project.analysis, loop.iter, scope))
    names = [part for part in walk(loop.iter) if isinstance(part, ast.Name)]
    values = (binding.value for name in names for binding, _ in bindings_of(project.analysis, name, scope))
    yield from (value for value in values if value is not None)


def _is_over_slices(project: Project, loop: ast.For | ast.AsyncFor, scope: Scope) -> bool:
    """Return whether a loop ends with the data: its range, or the generator it takes batches from, cuts them."""
    cut = [draw for draw in project.draws.batches.values() if draw.kind != RANDOM]
    nodes = {draw.node for draw in cut} | {size for draw in cut for size, _ in draw.sizes}
    if not nodes:
        return False
    end, laid_out = range_end(project, loop.iter, scope), project.draws.laid_out
    if laid_out and end is not None and any(node in laid_out for node, _ in project.ranks.origins(end, scope)):
        return True
    inside = set(walk(loop.iter))
    for part in [part for part in inside if isinstance(part, ast.Call)]:
        for function in project.analysis.functions_called(part, scope):
            inside |= set(own_nodes(function.node))
    names = {part for part in inside if isinstance(part, ast.Name)}
    bound = [binding.value for name in names for binding, _ in bindings_of(project.analysis, name, scope)]
    return not nodes.isdisjoint(inside | {part for value in bound if value is not None for part in walk(value)})


def _is_other_count(project: Project, bound: ast.expr, scope: Scope) -> bool:
    """Return whether a number follows the length of the loader or the data, or is of the micro batches of a step."""
    if any(word in ast.unparse(bound).lower() for word in ACCUMULATION):
        return True
    return _follows_data(project, bound, scope)


def _follows_data(project: Project, number: ast.expr, scope: Scope) -> bool:
    """Return whether a number of steps is that of the loader's batches, or of the batches in the data.

    `len(dataset) // batch_size` is converted to the batch size of all ranks.
    """
    if single_process_sizes(project, number, scope, sizes_of_steps(project), of_samples=True):
        return True
    return has_loader_length(project, number, scope) and not _divides_by_loader(project, number, scope)


def _divides_by_loader(project: Project, bound: ast.expr | None, scope: Scope) -> bool:
    """Return whether a number of epochs is computed from one of steps: total_steps // len(loader)."""
    places = project.ranks.origins(bound, scope) if bound is not None else []
    return any(
        isinstance(part, ast.BinOp)
        and isinstance(part.op, (ast.Div, ast.FloorDiv))
        and has_loader_length(project, part.right, where)
        for node, where in places
        for part in walk(node)
    )


def _follows_loader(project: Project, loop: LoopNode, scope: Scope) -> bool:
    """Return whether a loop draws as many batches as its loader or the data holds, one by one."""
    end = range_end(project, loop.iter, scope) if isinstance(loop, (ast.For, ast.AsyncFor)) else None
    return end is not None and ((end, scope) in counted_draws(project) or _follows_data(project, end, scope))


def _limit(scope: Scope, node: ast.expr | ast.stmt, bound: str) -> StepLimit:
    return StepLimit(line_at(scope, node), scope.source.place(node), bound)


def line_at(scope: Scope, node: ast.expr | ast.stmt) -> str:
    """Return the line on which a node begins."""
    return scope.source.text.splitlines()[node.lineno - 1]
