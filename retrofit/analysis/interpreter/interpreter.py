"""Run a program without its values: every statement, both branches of tests, loops until nothing new is found."""

from __future__ import annotations

import ast
from collections.abc import Collection
from dataclasses import replace
from typing import Union

from ..nodes import walk
from ..python_api import VIEWS
from ..scopes import Scope
from ..values.attribute_names import pattern_of
from ..values.inference import Analysis
from ..values.kinds import LocalClass
from ..values.views import unchanged
from .branches import CHECKS, checked, depend_on, leaves
from .callers import shown_by
from .calls import PASSED, Calls
from .containers import Containers
from .domain import Domain
from .expressions import Expressions, loaded, owners, scope_of_name
from .frames import Frame, Loop, Memory
from .function_values import FunctionValues
from .objects import call_method, next_of
from .state import (
    NONE,
    OTHER,
    SAME,
    Cell,
    Flow,
    Root,
    State,
    closed,
    drawn_too,
    escaped,
    joined,
    joined_states,
    mixed,
)

MOST_STATEMENTS = 60_000
MOST_TURNS = 4  # of one loop
LEAVING = (ast.Return, ast.Break, ast.Continue)
ENDS = (*LEAVING, ast.Raise)
DECIDES = "decides"
WEIGHS = "weighs"
STAYING = (DECIDES, WEIGHS, CHECKS, PASSED)  # kinds of showing that are told where they are
LoopNode = Union[ast.For, ast.AsyncFor, ast.While]


class Interpreter:
    """Follows through a program what differs between processes; `domain` knows the libraries, and takes the notes."""

    def __init__(self, analysis: Analysis, domain: Domain, together: Collection[ast.AST] = ()) -> None:
        self.analysis, self.domain = analysis, domain
        self.together = frozenset(together)  # the nodes whose values are the same in every process
        self.rank_branches: set[ast.AST] = set()  # tests, and what loops iterate over, by which processes part
        self.entered: set[Scope] = set()  # functions that are called under one of these
        self.memory = Memory(analysis)
        self.expressions, self.calls, self.containers = Expressions(self), Calls(self), Containers(self)
        self.functions = FunctionValues(self)
        self.frames: list[Frame] = []
        self.frame: Frame  # that is running
        self.scope: Scope  # of it
        self.steps = 0
        self.is_cut = False  # calls in too many others were not followed
        self.seen: set[Scope] = set()  # what was run
        self.batches = 0  # loops over batches that are being run
        self.made_in: dict[Cell, int] = {}  # in how many of them an object was made

    def _enter(self, frame: Frame) -> None:
        self.frames.append(frame)
        self.frame, self.scope = frame, frame.scope

    def _leave(self) -> None:
        self.frames.pop()
        if self.frames:
            self.frame, self.scope = self.frames[-1], self.frames[-1].scope

    def has_time(self) -> bool:
        return self.steps < MOST_STATEMENTS

    def is_complete(self) -> bool:
        return self.has_time() and not self.is_cut

    def run_frame(self, frame: Frame) -> Flow:
        """Run a module or a function to its end and return what it gives."""
        self._enter(frame)
        self.seen.add(frame.scope)
        if frame.unsure:
            self.entered.add(frame.scope)
        node = frame.scope.node
        if isinstance(node, ast.Lambda):
            frame.give(self.expressions.of(node.body))
        else:
            falls = self.block(node.body)
            self.memory.meet([*frame.ends, *([self.memory.state] if falls or not frame.ends else [])])
        self._leave()
        return frame.returned or NONE

    # What is asked of the running frame.

    def place(self, node: ast.expr, kind: str) -> Root | None:
        loops = tuple(loop.node for loop in self.frame.loops)
        return self.domain.place(node, self.scope, loops, kind, not self.frame.unsure)

    def new_cell(self, node: ast.AST, kind: Scope | None = None, is_source: bool = False) -> Cell:
        cell = Cell(node, self.frame.calls, kind, is_source)
        is_made_again = cell in self.made_in
        self.made_in[cell] = self.batches
        if kind is None and is_made_again:
            self.memory.state.drop(cell)
        return cell

    def root_scope(self, node: ast.expr) -> Scope:
        return scope_of_name(node, self.scope)

    def parts(self, test: ast.AST, flow: Flow) -> bool:
        """Return whether processes part by a test, or iterate over something another number of times; take note."""
        is_apart = self.domain.is_apart(flow) and not self.domain.is_decided_together(test, self.scope)
        if is_apart:
            self.rank_branches.add(test)
        return is_apart

    def kept(self, cells: frozenset[Cell], flow: Flow) -> Flow:
        """Return what is known of a value in lists or dicts that it is put into."""
        outlives = bool(cells) and all(self.made_in.get(cell, 0) < self.batches for cell in cells)
        return self.domain.kept(flow) if outlives else flow

    def show(self, node: ast.AST, kind: str, flows: list[tuple[ast.expr, Flow]]) -> None:
        flows = [pair for pair in flows if pair[1].differs]
        if flows:
            place, scope, flows = (node, self.scope, flows) if kind in STAYING else shown_by(self, node, flows)
            self.domain.show(place, scope, kind, flows)

    def taint(self, target: ast.expr, flow: Flow) -> None:
        """Let an object that nothing is known about differ from now on: it was given something that does."""
        while isinstance(target, ast.Subscript) or (isinstance(target, ast.Attribute) and target.attr in VIEWS):
            target = target.value
        if isinstance(target, ast.Name):
            found = self.scope.find(target.id)
            variable = (found[0] if found else self.scope, target.id)
            for owner in owners(target.id, self.scope):
                if not self.expressions.of(owner).differs:
                    self.taint(owner, flow)
        elif isinstance(target, ast.Attribute):
            base = self.expressions.of(target.value)
            if base.cells:
                known = self.expressions.of(target)
                self.memory.put(base.cells, target.attr, replace(mixed([flow, known]), cells=known.cells))
                return
            variable = (self.root_scope(target), ast.unparse(target))
        else:
            return
        known = self.memory.state.get(variable) or NONE
        self.memory.state[variable] = replace(mixed([known, flow]), cells=known.cells)

    # Statements.

    def block(self, statements: list[ast.stmt]) -> bool:
        """Run statements and return whether the last one is passed."""
        for statement in statements:
            self.steps += 1
            if not self.has_time():
                return True
            if not self._statement(statement):
                return False
        return True

    def _statement(self, node: ast.stmt) -> bool:
        if isinstance(node, ast.If):
            return self._if(node)
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            return self._loop(node)
        if isinstance(node, (ast.With, ast.AsyncWith)):
            managers = []
            for item in node.items:
                flow = self.expressions.of(item.context_expr)
                managers.append((item.context_expr, flow))
                entered = call_method(self, item.context_expr, flow, "__enter__", [])
                if item.optional_vars is not None:
                    self.bind(item.optional_vars, entered or flow)
            falls = self.block(node.body)
            for manager, flow in reversed(managers):
                call_method(self, manager, flow, "__exit__", [NONE] * 3)
            return falls
        if isinstance(node, ast.Try) or type(node).__name__ == "TryStar":
            return self._try(node)  # type: ignore[arg-type]
        if isinstance(node, ENDS):
            self._end(node)
            return False
        if isinstance(node, ast.ClassDef):
            self._class(node)
        else:
            self._simple(node)
        return True

    def _simple(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign):
            flow = self.expressions.of(node.value)
            for target in node.targets:
                self.bind(target, flow)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self.bind(node.target, self.expressions.of(node.value))
        elif isinstance(node, ast.AugAssign):
            target = loaded(node.target)
            self.scope.source.parents[target] = node
            before = self.expressions.of(target)
            added = self.expressions.of(node.value)
            if before.cells and not before.differs and isinstance(node.op, ast.Add):  # a list made longer
                self.memory.put(before.cells, None, self.kept(before.cells, self.expressions.whole(added)))
                self.containers.extend(before.cells, added)
                return
            operation = ast.copy_location(ast.BinOp(target, node.op, node.value), node)
            flow = self.domain.operation(operation, [before, self.expressions.whole(added)])
            self.bind(node.target, drawn_too(flow, before, added))
        elif isinstance(node, ast.Expr):
            self.expressions.of(node.value)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for decoration in self.analysis.decorations.get(node, ()):
                self.expressions.of(decoration)
        elif isinstance(node, ast.Assert):
            checked(self, node)

    def _class(self, node: ast.ClassDef) -> None:
        scope = self.analysis.scope_of_node[node]
        frame = Frame(scope, self.frame.calls)
        self._enter(frame)
        self.block([part for part in node.body if isinstance(part, (ast.Assign, ast.AnnAssign))])
        self._leave()

    def _end(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Return):
            self.frame.give(self.expressions.of(node.value))
            self.frame.ends.append(self.memory.state.copy())
        elif isinstance(node, ast.Raise):
            self.expressions.of(node.exc)
        elif self.frame.loops:
            loop = self.frame.loops[-1]
            (loop.left if isinstance(node, ast.Break) else loop.again).append(self.memory.state.copy())

    def bind(self, target: ast.expr, flow: Flow) -> None:
        if isinstance(target, ast.Name):
            self.memory.store(target.id, self.scope, flow)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for index, part in enumerate(target.elts):
                inner = part.value if isinstance(part, ast.Starred) else part
                is_part = len(flow.parts) == len(target.elts)
                self.bind(inner, flow.parts[index] if is_part else self._unpacked(flow, index))
        elif isinstance(target, ast.Attribute):
            self._bind_attribute(target, flow)
        elif isinstance(target, ast.Subscript):
            self._bind_item(target, flow)

    def _unpacked(self, flow: Flow, index: int) -> Flow:
        if flow.parts or flow.cells:
            return self.expressions.element(flow)
        constant = ast.Constant(str(index)) if flow.kind != "shape" else ast.Constant(index)
        return drawn_too(self.domain.item(flow, constant, NONE) if flow.differs else NONE, flow)

    def _bind_attribute(self, target: ast.Attribute, flow: Flow) -> None:
        base = self.expressions.of(target.value)
        kind = self.domain.sink(_as_call(target), self.scope, False)
        if kind:
            self.show(target, kind, [(target, flow)])
        if base.cells:
            self.memory.put(base.cells, target.attr, flow)
            return
        self.memory.state[self.root_scope(target), ast.unparse(target)] = flow
        for value in self.analysis.evaluate(target.value, self.scope):
            if isinstance(value, LocalClass):
                known = self.memory.state.get((value.scope, target.attr)) or NONE
                self.memory.state[value.scope, target.attr] = joined(known, flow)

    def _bind_item(self, target: ast.Subscript, flow: Flow) -> None:
        base, key = self.expressions.of(target.value), self.expressions.whole(self.expressions.of(target.slice))
        kind = self.domain.sink_of_entry(target, self.scope) if flow.differs else ""
        if kind:
            self.show(target, kind, [(target, flow)])
        literal = target.slice.value if isinstance(target.slice, ast.Constant) else None
        flow = replace(mixed([flow, key]), cells=flow.cells) if key.differs else flow
        if base.cells:
            self.memory.put(base.cells, literal, flow, pattern_of(target.slice))
        elif literal is not None and not base.differs:
            self.memory.state[self.root_scope(target), ast.unparse(target)] = flow
            if flow.differs:
                self.taint(target.value, flow)
        elif self.expressions.whole(flow).differs:
            self.taint(target.value, self.expressions.whole(flow))

    # Branches and loops.

    def _if(self, node: ast.If) -> bool:
        test = checked(self, node)
        is_apart = self.parts(node.test, test)
        if is_apart or (leaves(node.body) and self.domain.counts_samples(test)):
            for branch in (node.body, node.orelse):
                if branch and self.domain.decides(branch, self.scope):
                    self.show(node, DECIDES, [(node.test, test)])
                    break
        test = test if is_apart else NONE
        self.frame.unsure += test.differs
        before = self.memory.state.copy()
        ends: list[State] = []
        for branch in (node.body, node.orelse):
            self.memory.state = before.copy()
            if self.block(branch):
                ends.append(self.memory.state)
        self.frame.unsure -= test.differs
        falls = bool(ends)
        self.memory.state = joined_states(ends) if ends else before
        if test.differs:
            depend_on(self, node, test, before, ends)
            if len(ends) < 2 and any(isinstance(part, LEAVING) for part in walk(node)):
                self.frame.unsure += 1  # an error in one process ends all of them
        return falls

    def _try(self, node: ast.Try) -> bool:
        before = self.memory.state.copy()
        falls = self.block(node.body)
        ends = [self.memory.state] if falls else []
        during = joined_states([before, self.memory.state])
        for handler in node.handlers:
            self.memory.state = during.copy()
            if self.block(handler.body):
                ends.append(self.memory.state)
        if falls and node.orelse:
            self.memory.state = ends[0]
            ends[0:1] = [self.memory.state] if self.block(node.orelse) else []
        self.memory.state = joined_states(ends) if ends else during
        return self.block(node.finalbody) and bool(ends)

    def _loop(self, node: LoopNode) -> bool:
        loop, unsure = Loop(node), self.frame.unsure
        self.frame.loops.append(loop)
        is_batch = self.domain.is_batch_loop(node)
        self.batches += is_batch
        before: State | None = None
        for _ in range(MOST_TURNS):
            if self.memory.state == before or not self.has_time():
                break
            before = self.memory.state.copy()
            self._turn(node, loop)
            self.frame.unsure = unsure
            after = joined_states([self.memory.state, *loop.again])  # a loop is taken to turn once at least
            loop.again.clear()
            self.memory.state = self._aged(after) if is_batch else after
        self.frame.loops.pop()
        self.batches -= is_batch
        if is_batch:
            loop.left[:] = [self._aged(state) for state in loop.left]
        self.memory.meet([self.memory.state, *loop.left])
        return self.block(node.orelse) if node.orelse else True

    def _turn(self, node: LoopNode, loop: Loop) -> None:
        if isinstance(node, ast.While):
            test = self.expressions.whole(self.expressions.of(node.test))
            is_apart = self.parts(node.test, test)
            if is_apart or self.domain.counts_samples(test):
                self.show(node, DECIDES, [(node.test, test)])
            self.frame.unsure += is_apart
        else:
            for name in _set_by_turns(node):
                self.bind(name, loop.given.setdefault(name.id, self.expressions.of(name)))
            drawn = self.expressions.of(node.iter)
            self.bind(node.target, self.turn(node.iter, drawn))
            self.frame.unsure += not self.domain.is_batch_loop(node) and self.parts(node.iter, drawn)
        if not self.block(node.body) and not loop.again:
            self.memory.state = joined_states([self.memory.state, *loop.left])

    def turn(self, drawn: ast.expr, flow: Flow) -> Flow:
        """Return what one turn of an iteration gives."""
        if isinstance(drawn, ast.Call) and "range" in self.analysis.called(drawn, self.scope):
            number = mixed([flow, *(self.expressions.of(part) for part in drawn.args)])
            return replace(number, roots=closed(number.roots))  # each process counts what it has
        is_known = not self.memory.held(flow.cells) or (
            isinstance(drawn, ast.Call) and unchanged(self.analysis, drawn, self.scope)
        )
        known = self.domain.element(drawn, self.scope) if is_known and not flow.differs else None
        if known is not None:
            return known
        own = next_of(self, drawn, flow, is_loop=True)
        if own is None and not flow.differs and not any(map(self.containers.holds, flow.cells)):
            known = self.domain.element(drawn, self.scope)  # of an object that has attributes, and no elements
            if known is not None:
                return known
        return self.domain.taken_apart(drawn, self.scope, self.expressions.element(flow) if own is None else own)

    def _aged(self, state: State) -> State:
        """Return a state in which what is left of a batch cannot be brought together over the processes any more."""
        return state.mapped(lambda owner, f: f if isinstance(owner, Cell) and owner.is_source else self.aged(f))

    def aged(self, flow: Flow) -> Flow:
        parts = tuple(self.aged(part) for part in flow.parts)
        if flow.kind in (SAME, OTHER, *self.domain.lasting):
            return replace(flow, parts=parts) if parts else flow
        return Flow(OTHER, is_read=True, roots=self.left(flow), cells=flow.cells, parts=parts)

    def left(self, flow: Flow) -> frozenset[Root]:
        """Return through which expressions a value has outlived its batch."""
        if flow.place is None or flow.is_read:
            return escaped(flow)
        return flow.roots | closed(frozenset([flow.place]))


def _set_by_turns(node: ast.For | ast.AsyncFor) -> list[ast.Name]:
    """Return the names that an iterable is made of, and that the turns of its loop set: for x in batches(x)."""
    stored = {part.id for part in walk(node.target) if isinstance(part, ast.Name)}
    return [part for part in walk(node.iter) if isinstance(part, ast.Name) and part.id in stored]


def _as_call(target: ast.Attribute) -> ast.Call:
    return ast.copy_location(ast.Call(target, [], []), target)


__all__ = ["Interpreter", "joined"]
