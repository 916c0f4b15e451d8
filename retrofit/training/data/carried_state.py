"""State that a training carries from batch to batch: queues, memory banks, codebooks, centers, moving statistics."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.branches import is_in_body
from retrofit.analysis.flow.operands import computed_from, inputs, through_calls
from retrofit.analysis.flow.reachability import objects_made
from retrofit.analysis.flow.reaching_definitions import live_bindings
from retrofit.analysis.flow.sources import Origin, functions_run, origins
from retrofit.analysis.flow.stored import ScopedName, own_variable, variables_at
from retrofit.analysis.nodes import walk
from retrofit.analysis.python_api import ADDS_ALL, ADDS_ONE, POPS
from retrofit.analysis.scopes import Scope, place_of
from retrofit.analysis.values.inference import Analysis
from retrofit.training.data.batch_values import BATCH, GRADIENT
from retrofit.training.data.shapes import is_about_shape
from retrofit.training.loops import LOOPS, LoopNode, Path
from retrofit.training.losses.first_batch import first_batch_writes
from retrofit.training.losses.loss_reads import names_of, terms_of
from retrofit.training.losses.writes import WRITING, Write, writes_of
from retrofit.training.torch_api.randomness import CHOOSING, DRAWS
from retrofit.training.torch_api.tensors import (
    NUMBERS_OF_ARRAYS,
    READS,
    RESIZES,
    SAME_ENTRIES,
    SHAPE_ATTRIBUTES,
    SHAPE_METHODS,
)

if TYPE_CHECKING:
    from retrofit.training import Project

KEEPS = (ADDS_ONE | ADDS_ALL) - {"put", "put_nowait"}  # a queue of threads gives each batch once
EMPTY = ast.List([], ast.Load())
Step = Callable[[Analysis, Origin], Iterable[Origin]]
NUMBERS = SHAPE_METHODS | (READS - {"numpy"})  # methods that give no tensors of samples
NUMBERS_OF_PYTHON = {"len", "int", "float", "range", "isinstance"}


def carried_writes(project: Project) -> list[Write]:
    """Return the writes, during a batch, of tensors that a later batch's loss is computed from."""
    return _carried(project)[0]


def writes_of_pools(project: Project) -> list[Write]:
    """Return the writes of lists of samples from which later batches get some at random: pictures of a generator."""
    return _carried(project)[1]


def writes_in_batches(project: Project) -> list[tuple[ScopedName, Write]]:
    """Return the writes, during a batch, of variables that were there before, and of attributes; with the variable."""
    return [(variable, write) for variable, write, _ in _all_written(project)]


def variables_of_losses(project: Project) -> set[ScopedName]:
    """Return the variables that the losses of the training are computed from."""
    return project.analysis.fact("variables of losses", lambda: _read_by_losses(project, inputs))


def _carried(project: Project) -> tuple[list[Write], list[Write]]:
    return project.analysis.fact("carried writes", lambda: _find(project))


def _find(project: Project) -> tuple[list[Write], list[Write]]:
    written = _all_written(project)
    last = last_backwards(project)
    late = {write.node for _, write, is_new in written if is_new and _is_for_next(project, write, last)}
    new = {(variable, write.node): write for variable, write, is_new in written if is_new and write.node not in late}
    fresh = {place[0] for place, write in new.items() if not _may_be_left_out(project, place[0], write, new)}
    carried = [
        (variable, write)
        for variable, write, is_new in written
        if (not is_new or write.node in late) and variable not in fresh
    ]
    with_samples = [
        (variable, write) for variable, write in carried if has_samples_of_batch(project, write.value, write.scope)
    ]
    lists = {variable for variable, write in with_samples if isinstance(write.node, ast.Call) and _adds(write.node)}
    read = set(variables_of_losses(project)) if with_samples else set()
    for _ in carried:  # a codebook that is computed from sums that are carried, too
        of_read = [write for variable, write in carried if variable in read]
        read.update(*(_variables_in(project, write.value, write.scope, inputs) for write in of_read))
    whole = read - (lists - _read_by_losses(project, _without_picks) if lists & read else set())
    pooled = lists - whole
    pooled &= _read_by_losses(project, _with_stored) if pooled else set()
    return (
        [write for variable, write in with_samples if variable in whole],
        [write for variable, write in with_samples if variable in pooled],
    )


def _may_be_left_out(
    project: Project, variable: ScopedName, write: Write, new: Collection[tuple[ScopedName, ast.AST]]
) -> bool:
    """Return whether a batch may keep the value of the one before: what sets it is in one branch of an `if` only."""
    inner = write.node
    for outer in write.scope.source.ancestors(inner):
        if isinstance(outer, LOOPS) or outer not in project.nodes_in_batches:
            return False
        if isinstance(outer, ast.If):
            other = outer.orelse if is_in_body(outer, inner) else outer.body
            if not any((variable, part) in new for statement in other for part in walk(statement)):
                return True
        inner = outer
    return False


def _adds(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in KEEPS


def _with_stored(analysis: Analysis, origin: Origin) -> Iterable[Origin]:
    """Return what an expression is computed from, also what was put into lists, but for the next one of a queue."""
    node = origin.node
    is_taken = isinstance(node, ast.Call) and last_name(node) in POPS
    if is_taken and all(isinstance(place, ast.Constant) for place in node.args):  # type: ignore[union-attr]
        return []
    return inputs(analysis, origin, stored=True)


def _without_picks(analysis: Analysis, origin: Origin) -> list[Origin]:
    """Return what an expression is computed from; nothing for objects of a list that are taken out, or at random."""
    node, scope = origin.node, origin.scope
    if isinstance(node, ast.Call) and (analysis.called(node, scope) & CHOOSING or last_name(node) in POPS):
        return []
    if isinstance(node, ast.Subscript) and any(
        isinstance(part.node, ast.Call) and analysis.called(part.node, part.scope) & DRAWS
        for part in computed_from(analysis, node.slice, scope)
    ):
        return []
    return list(inputs(analysis, origin))


def last_backwards(project: Project) -> dict[Scope, ast.AST]:
    """Return the last backward call of the training in each function."""
    calls = [path.frames[0] for path in project.paths if path.loops]
    return {frame.scope: frame.node for frame in sorted(calls, key=lambda frame: frame.node.lineno)}  # type: ignore[attr-defined]


def _is_for_next(project: Project, write: Write, last: dict[Scope, ast.AST]) -> bool:
    """Return whether a variable gets its value after the last backward call, and the next batch can find it there."""
    backward, source = last.get(write.scope), write.scope.source
    if backward is None or write.node.lineno <= (backward.end_lineno or 0):  # type: ignore[attr-defined]
        return False
    loop = next((outer for outer in source.ancestors(backward) if isinstance(outer, LOOPS)), None)
    return loop is not None and loop in source.ancestors(write.node) and _outlives_turn(project, write, loop)


def _outlives_turn(project: Project, write: Write, loop: LoopNode) -> bool:
    """Return whether a value is read elsewhere than in the rest of the turn: always for names that are not local."""
    scope, source = write.scope, write.scope.source
    if not any(binding.node is write.node for binding in scope.bindings.get(write.name, [])):
        return True
    for name in walk(scope.node):
        if not isinstance(name, ast.Name) or name.id != write.name or not isinstance(name.ctx, ast.Load):
            continue
        reader = project.analysis.scope_at(source, name)
        if (found := reader.find(name.id)) is None or found[0] is not scope:
            continue
        if reader is not scope:
            return True
        is_rest = place_of(name) > place_of(write.node) and loop in source.ancestors(name)
        if not is_rest and any(binding.node is write.node for binding in live_bindings(name, scope)[1]):
            return True
    return False


def _all_written(project: Project) -> list[tuple[ScopedName, Write, bool]]:
    return project.analysis.fact("variables written in batches", lambda: list(_written(project)))


def _written(project: Project) -> Iterator[tuple[ScopedName, Write, bool]]:
    """Yield the variables that a batch gives a value, or changes in place, and whether the value is a new one."""
    losses = {(path.frames[0].scope, name) for path in project.paths for name in _loss_names(path)}
    held = _held_before(project)
    at_first = {write.node for write in first_batch_writes(project)}
    for node, scope in project.in_batches.of(*WRITING, ast.Delete):
        if getattr(scope.node, "name", "") == "__init__" or node in at_first:
            continue  # the state as it begins
        if _fills_missing(project, node, scope):
            continue
        for place, value, is_in_place in (*writes_of(node), *_put_in(project, node, scope), *_emptied(node)):
            for variable in _written_at(project, place, scope):
                if (
                    variable in losses
                    or variable[1] == "_"
                    or not (isinstance(place, ast.Attribute) or variable in held)
                    or _is_of_one_batch(project, variable[0])
                ):
                    continue
                is_update = is_in_place or _reads(project, value, scope, variable)
                is_update = is_update and not takes_size_of_batch(node)
                yield variable, Write(node, value, scope, ast.unparse(place)), not is_update


def _written_at(project: Project, place: ast.expr, scope: Scope) -> list[ScopedName]:
    """Return the variable that a place is: the own one of a method, or an attribute of another object: `net.queue`."""
    own = own_variable(place, scope)
    return [own] if own is not None else variables_at(project.analysis, place, scope)


def _fills_missing(project: Project, node: ast.AST, scope: Scope) -> bool:
    """Return whether an entry is made once for each key that a sample has, where it is missing: `if k not in read`.

    It is not of what a model computes: a process that makes it again gets the same.
    """
    target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    if not isinstance(target, ast.Subscript) or isinstance(target.slice, (ast.Slice, ast.Tuple)):
        return False
    values = project.batch_values
    if BATCH not in values.sources_of(target.slice, scope) or GRADIENT in values.sources_of(node.value, scope):  # type: ignore[attr-defined]
        return False
    whole, key, kept = ast.unparse(target), ast.unparse(target.slice), ast.unparse(target.value)
    inner: ast.AST = node
    for outer in scope.source.ancestors(node):
        if isinstance(outer, ast.If):
            missing, there = (f"{whole} is None", f"{key} not in {kept}"), (f"{whole} is not None", f"{key} in {kept}")
            tests = missing if is_in_body(outer, inner) else there
            if ast.unparse(outer.test).removesuffix(".keys()") in tests:
                return True
        inner = outer
    return False


def _put_in(project: Project, node: ast.AST, scope: Scope) -> Iterator[tuple[ast.expr, ast.expr, bool]]:
    """Yield what a method puts into a list or a queue; one that is emptied has a new value.

    Where the result of `x.add(y)` is used it is a sum: those methods of containers return None.
    """
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return
    if node.func.attr == "add" and not isinstance(scope.source.parents[node], ast.Expr):
        return
    if _adds(node) and node.args and not project.analysis.functions_called(node, scope):
        yield node.func.value, node.args[-1], True
    elif node.func.attr == "clear" and not node.args:
        yield node.func.value, EMPTY, False


def _emptied(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr, bool]]:
    """Yield the list of which everything is deleted: `del features[:]`."""
    for target in node.targets if isinstance(node, ast.Delete) else ():
        if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Slice):
            yield target.value, EMPTY, False


def _is_of_one_batch(project: Project, owner: Scope) -> bool:
    """Return whether no object of a class outlives a batch: each is made in it, or in a function that runs none."""
    made = objects_made(project.analysis).get(owner, [])
    running = {frame.scope for path in project.paths for frame in path.frames}
    return bool(made) and all(
        _is_dropped(call, scope) and (call in project.nodes_in_batches or scope not in running) for call, scope in made
    )


def _is_dropped(call: ast.Call, scope: Scope) -> bool:
    """Return whether an object that a call makes is held by variables of a function at most: Solver(x).run()."""
    outer = scope.source.parents[call]
    targets = outer.targets if isinstance(outer, ast.Assign) else []
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    is_local = scope.is_function and all(scope.find(name)[0] is scope for name in names)  # type: ignore[index]
    return isinstance(outer, ast.Attribute) or (is_local and 0 < len(targets) == len(names))


def _loss_names(path: Path) -> set[str]:
    call = path.frames[0].node
    loss = call.func.value if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) else call
    return terms_of(names_of(loss), path.frames[0])  # type: ignore[arg-type]


def _held_before(project: Project) -> set[ScopedName]:
    """Return the names that have a value before the loop over the batches begins."""
    loops = project.batch_values.loops
    frames = [(loop, frame.scope) for path in project.paths for loop, frame in path.loops if loop in loops]
    return {
        (owner, name)
        for loop, scope in frames
        for owner in {scope, scope.module}
        for name, bindings in owner.bindings.items()
        if not any(binding.node in loops for binding in bindings)  # the batch itself
        and any(binding.kind == "value" and loop not in owner.source.ancestors(binding.node) for binding in bindings)
    }


def takes_size_of_batch(node: ast.AST) -> bool:
    """Return whether a variable gets the size of the batch, and nothing older remains: inputs.resize_as_(images)."""
    if not isinstance(node, ast.Call) or last_name(node) not in RESIZES:
        return False
    is_whole = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)
    of_shape = any(is_about_shape(part) for given in node.args for part in walk(given))
    return is_whole and (of_shape or last_name(node) == "resize_as_")


def _reads(project: Project, value: ast.expr, scope: Scope, variable: ScopedName) -> bool:
    """Return whether a new value of a variable is computed, in the same function, from the one before."""

    def within(origin: Origin) -> list[Origin]:
        found = [part for part in inputs(project.analysis, origin) if part.scope is scope]
        if isinstance(origin.node, ast.Call) and functions_run(project.analysis, origin.node, scope):
            found += [origin.to(part) for part in origin.node.args]  # hidden = repackage(hidden)
        return found

    steps = origins(project.analysis, [Origin(value, scope)], within)
    places = [(step.node, step.scope) for step in steps if isinstance(step.node, ast.expr)]
    return any(variable in _written_at(project, *place) for place in places)


def has_samples_of_batch(project: Project, value: ast.expr, scope: Scope) -> bool:
    """Return whether a value is computed from tensors of the batch, not from their sizes or from figures."""

    def through(origin: Origin) -> list[Origin]:
        node = origin.node
        if isinstance(node, ast.Call) and (
            last_name(node) in (NUMBERS_OF_PYTHON if isinstance(node.func, ast.Name) else NUMBERS)
            or _is_figure(project.analysis, node, origin.scope)
            or project.leads_to_collective(node, origin.scope)
        ):
            return []  # what comes from all ranks is the same on each
        if isinstance(node, ast.Attribute) and node.attr in SHAPE_ATTRIBUTES:
            return []
        found = list(inputs(project.analysis, origin))
        if isinstance(node, ast.Attribute) and node.attr in SAME_ENTRIES:  # for image in images.data
            found.append(origin.to(node.value))
        if isinstance(node, ast.Call) and functions_run(project.analysis, node, origin.scope):
            given = {*node.args, *(keyword.value for keyword in node.keywords)}  # what it returns says what of these
            found = [part for part in found if part.node not in given]
        return found

    values = project.batch_values
    steps = origins(project.analysis, [Origin(value, scope)], through)
    nodes = [(step.node, step.scope) for step in steps]
    return any(node in values.calls or _is_of_batch(project, node, scope) for node, scope in nodes)


def _is_figure(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    """Return whether a call gives one number for a whole array: np.mean(errors), without an axis."""
    return len(call.args) == 1 and not call.keywords and bool(analysis.called(call, scope) & NUMBERS_OF_ARRAYS)


def _is_of_batch(project: Project, node: ast.AST, scope: Scope) -> bool:
    """Return whether a name is what the loop over the batches gives it; a prefetcher keeps what next() gives."""
    return isinstance(node, ast.Name) and project.batch_values.is_drawn(node, scope)


def _read_by_losses(project: Project, step: Step) -> set[ScopedName]:
    """Return the variables that the losses of the training are computed from, by such a step."""
    found: set[ScopedName] = set()
    for path in project.paths:
        call, scope = path.frames[0].node, path.frames[0].scope
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            found |= _variables_in(project, call.func.value, scope, step)
    return found


def _variables_in(project: Project, node: ast.expr, scope: Scope, step: Step) -> set[ScopedName]:
    """Return the variables that an expression is computed from."""
    parts = through_calls(project.analysis, Origin(node, scope), partial(step, project.analysis))
    places = ((part.node, part.scope) for part in parts if isinstance(part.node, ast.expr))
    return {name for node, scope in places for name in variables_at(project.analysis, node, scope)}
