"""Objects: those of the project as iterators, those that a library makes, attributes that are set by their names."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from .by_text import cell_order
from .state import NONE, Cell, Flow, joined, mixed

if TYPE_CHECKING:
    from .interpreter import Interpreter

SETS = "setattr"


def next_of(run: Interpreter, node: ast.expr, flow: Flow, is_loop: bool) -> Flow | None:
    """Return what objects of the project give one after another; None where they are not written to do that."""
    found: Flow | None = None
    for cell in sorted(flow.cells, key=cell_order):
        given = _next_of(run, node, cell, is_loop) if cell.kind is not None else None
        if given is not None:
            found = given if found is None else joined(found, given)
    return found


def call_method(run: Interpreter, node: ast.expr, flow: Flow, name: str, given: list[Flow]) -> Flow | None:
    """Run a method of objects of the project, as a `with` does, and return what it gives; None where none has it."""
    found: Flow | None = None
    for cell in sorted(flow.cells, key=cell_order):
        made = _run(run, node, cell, name, given)
        if made is not None:
            found = made if found is None else joined(found, made)
    return found


def gone_through(run: Interpreter, node: ast.expr, flow: Flow) -> Flow:
    """Return a list of what an object of the project gives one after another; any other value as it is."""
    own = next_of(run, node, flow, is_loop=True) if not any(map(run.containers.holds, flow.cells)) else None
    if own is None:
        return flow
    cell = run.new_cell(node)
    run.memory.state[cell, None] = own
    return Flow(cells=frozenset([cell]))


def _next_of(run: Interpreter, node: ast.expr, cell: Cell, is_loop: bool) -> Flow | None:
    started = _run(run, node, cell, "__iter__", []) if is_loop else None
    following = _run(run, node, cell, "__next__", [])
    if following is not None:
        return following
    if started is not None:
        return run.turn(node, started) if cell not in started.cells else None
    return _run(run, node, cell, "__getitem__", [NONE]) if is_loop else None


def _run(run: Interpreter, node: ast.expr, cell: Cell, name: str, given: list[Flow]) -> Flow | None:
    method = run.analysis.classes.method(cell.kind, name) if cell.kind is not None else None
    return (
        run.calls.run_function(node, method, Flow(cells=frozenset([cell])), given, []) if method is not None else None
    )


def set_by_name(run: Interpreter, node: ast.Call, given: list[Flow]) -> bool:
    """Carry out setattr(object, name, value), and return whether a call is one."""
    if SETS not in run.analysis.called(node, run.scope) or len(given) != 3:
        return False
    name = node.args[1].value if isinstance(node.args[1], ast.Constant) else None
    if given[0].cells:
        run.memory.put(given[0].cells, name, given[2])
    elif given[2].differs:
        run.taint(node.args[0], given[2])
    return True


def made_outside(run: Interpreter, node: ast.Call) -> Flow:
    """Return what a class of a library makes: an object that keeps what it is given; NONE for other calls."""
    names = run.analysis.called(node, run.scope)
    packages = {name.partition(".")[0] for name in names}
    is_made = bool(names) and all(name.rpartition(".")[2][:1].isupper() for name in names)
    if not is_made or not packages.isdisjoint(run.analysis.library.functional_packages):
        return NONE
    return Flow(cells=frozenset([run.new_cell(node)]))


def keep_given(run: Interpreter, node: ast.Call, receiver: Flow, given: list[Flow]) -> None:
    """Let objects of libraries keep what a call of them, or of a method of theirs, gives them."""
    target = receiver if isinstance(node.func, ast.Attribute) else run.expressions.of(node.func)
    cells = frozenset(cell for cell in target.cells if cell.kind is None and not cell.is_source)
    whole = mixed(given)
    if cells and whole.differs and run.domain.keeps(node):
        run.memory.put(cells, None, whole)
