"""Values of expressions, in terms of what differs between processes."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from ..nodes import children
from ..python_api import ATTRIBUTES, LISTS_OBJECTS, LOOKS_UP
from ..scopes import Scope
from ..values.kinds import LocalClass, LocalModule
from .objects import gone_through
from .state import NONE, Flow, Root, drawn_too, flattened, joined, mixed

if TYPE_CHECKING:
    from .interpreter import Interpreter

DRAWN_FROM = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)


class Expressions:
    """Evaluates expressions in the running frame of an interpreter."""

    def __init__(self, run: Interpreter) -> None:
        self.run = run
        self.is_drawn = False  # a part of the expression that is being evaluated
        self._known: dict[tuple[ast.expr, Scope], tuple[Flow | None, bool | None]] = {}

    def of(self, node: ast.expr | None) -> Flow:
        if node is None:
            return NONE
        outer, self.is_drawn = self.is_drawn, False
        drawn, is_random = self._randomness(node)
        flow = self._placed(node, self._of(node)) if drawn is None else self._source(node, drawn)
        is_drawn = is_random is not None and (is_random or flow.is_drawn or self.is_drawn)
        self.is_drawn = outer or is_drawn
        return flow if flow.is_drawn == is_drawn else replace(flow, is_drawn=is_drawn)

    def _randomness(self, node: ast.expr) -> tuple[Flow | None, bool | None]:
        """Return what processes draw from an expression, None for most, and whether it draws random numbers itself.

        The latter is None where nothing of random numbers is in it. Loops ask for both again in each turn.
        """
        run = self.run
        question = (node, run.scope)
        if question not in self._known:
            drawn = run.domain.draws(node, run.scope) if isinstance(node, DRAWN_FROM) else None
            is_settled = node in run.together or run.domain.is_about_shape(node)
            self._known[question] = drawn, None if is_settled else run.domain.is_random(node, run.scope)
        return self._known[question]

    def _source(self, node: ast.expr, drawn: Flow) -> Flow:
        """Return an object from which processes draw other elements."""
        cell = self.run.new_cell(node, is_source=True)
        self.run.memory.state[cell, None] = drawn
        return Flow(cells=frozenset([cell]))

    def _placed(self, node: ast.expr, flow: Flow) -> Flow:
        if node in self.run.together:
            return NONE
        is_given = flow.place is not None and flow.place.scope is not self.run.scope  # by the caller
        is_read = flow.is_read and flow.place is not None and flow.place.kind == flow.kind  # where it was read it is
        if flow.differs and not (is_read or is_given or flow.parts or isinstance(node, ast.Starred)):
            place = self.run.place(node, flow.kind)
            if place is not None:
                flow = replace(flow, place=replace(place, is_read=flow.is_read, inputs=inputs_of(flow)))
        return flow

    def _of(self, node: ast.expr) -> Flow:
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is not None:
            return method(node)
        return mixed([self.of(part) for part in children(node) if isinstance(part, ast.expr)])

    def _constant(self, node: ast.Constant) -> Flow:
        return NONE

    def _name(self, node: ast.Name) -> Flow:
        run = self.run
        known = run.memory.load(node.id, run.scope)
        if known == NONE:
            known = run.functions.of(node)
        return drawn_too(run.domain.name(node, run.scope, known), known)

    def _attribute(self, node: ast.Attribute) -> Flow:
        flow = self._attribute_of(node)
        if not (flow.differs or flow.cells or flow.parts):
            flow = self.run.domain.set_unseen(node, self.run.scope, self.run.seen)
        return self.run.domain.name(node, self.run.scope, flow)

    def _attribute_of(self, node: ast.Attribute) -> Flow:
        run = self.run
        for value in run.analysis.evaluate(node.value, run.scope):
            if isinstance(value, LocalModule):
                return run.memory.state.get((value.scope, node.attr)) or run.functions.of(node)
        base = self.of(node.value)
        if base.cells and node.attr == ATTRIBUTES:
            return base
        if base.cells:
            held = run.memory.field(base.cells, node.attr)
            if held is not None:
                return held
            got = run.calls.of_property(base, node.attr)
            if got is not None:
                return got
            method = run.functions.of(node, base)
            if method.cells:
                return method
        known = run.memory.state.get((run.root_scope(node), ast.unparse(node)))
        if known is None and not base.cells:
            known = self._of_class(node)
        if known is not None:
            return known
        return run.domain.attribute(base, node.attr) if base.differs else NONE

    def _of_class(self, node: ast.Attribute) -> Flow | None:
        """Return an attribute of a class itself, None where there is none."""
        run = self.run
        for value in run.analysis.evaluate(node.value, run.scope):
            for owner in run.analysis.classes.mro(value.scope) if isinstance(value, LocalClass) else ():
                if (owner, node.attr) in run.memory.state:
                    return run.memory.state[owner, node.attr]
        return None

    def _subscript(self, node: ast.Subscript) -> Flow:
        base, key = self.of(node.value), self.of(node.slice)
        index = _index(node.slice)
        if isinstance(index, int) and -len(base.parts) <= index < len(base.parts):
            return base.parts[index]
        if isinstance(index, slice) and base.parts and not base.cells:
            return replace(base, parts=base.parts[index])
        if base.cells:
            literal = node.slice.value if isinstance(node.slice, ast.Constant) else None
            held = self.run.memory.field(base.cells, literal) if literal is not None else None
            found = held if held is not None and not base.differs else self.element(base)
            return self.run.domain.looked_up(self.whole(key)) if key.differs and not found.differs else found
        if base.differs:
            return self.run.domain.item(base, node.slice, key)
        if base.parts:
            return mixed([self.element(base), key]) if key.differs else self.element(base)
        known = self.run.memory.state.get((self.run.root_scope(node), ast.unparse(node)))
        key = self.whole(key)  # of `counts[label, guess]`, too
        return known if known is not None else self.run.domain.looked_up(key) if key.differs else NONE

    def element(self, flow: Flow) -> Flow:
        """Return what one element of a value is, whichever."""
        if flow.parts:
            found = flow.parts[0]
            for part in flow.parts[1:]:
                found = joined(found, part)
            return found
        item = self.run.domain.item(flow, ast.Name("_", ast.Load()), NONE) if flow.differs else NONE
        held = self.run.memory.held(flow.cells)
        if held:
            found = held[0]
            for part in held[1:]:
                found = joined(found, part)
            return joined(found, item) if item.differs else found
        return drawn_too(item, flow)

    def _call(self, node: ast.Call) -> Flow:
        return self.run.calls.of(node)

    def settle_draws(self, flow: Flow) -> Flow:
        """Let a call be drawn as what it gives is, whatever it was given."""
        self.is_drawn = flow.is_drawn
        return flow

    def _binop(self, node: ast.BinOp) -> Flow:
        left, right = self.whole(self.of(node.left)), self.whole(self.of(node.right))
        if isinstance(node.op, (ast.Div, ast.FloorDiv)) and not right.differs:
            right = self._placed(node.right, self.run.domain.divisor(node.right, self.run.scope, left))
        for part, flow, other in ((node.left, left, right), (node.right, right, left)):
            kind = self.run.domain.sink_of_factor(part, self.run.scope, flow, other)
            if kind:
                self.run.show(part, kind, [(part, flow)])
        if isinstance(node.op, ast.Add) and not (left.differs or right.differs):
            return Flow(cells=left.cells | right.cells)  # of two lists
        return self.run.domain.operation(node, [left, right])

    def _compare(self, node: ast.Compare) -> Flow:
        parts = self._one_after_another([node.left, *node.comparators], node, always=2)
        if all(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
            return NONE  # the same thing is missing everywhere, as far as can be told
        return self.run.domain.operation(node, parts)

    def _unaryop(self, node: ast.UnaryOp) -> Flow:
        return self._operation(node, [node.operand])

    def _boolop(self, node: ast.BoolOp) -> Flow:
        return self.run.domain.operation(node, self._one_after_another(node.values, None, always=1))

    def _operation(self, node: ast.expr, operands: list[ast.expr]) -> Flow:
        return self.run.domain.operation(node, [self.whole(self.of(part)) for part in operands])

    def _one_after_another(self, operands: list[ast.expr], test: ast.expr | None, always: int) -> list[Flow]:
        """Return operands of which all but the first are evaluated as those before decide: by `test`, or themselves."""
        flows: list[Flow] = []
        unsure = self.run.frame.unsure
        for number, operand in enumerate(operands):
            if number >= always:
                self.run.frame.unsure += any(self.run.parts(test or part, f) for part, f in zip(operands, flows))
            flow = self.of(operand)
            flows.append(self.whole(flow) if test is None else flow)
        self.run.frame.unsure = unsure
        return flows

    def whole(self, flow: Flow) -> Flow:
        """Return a value with all that it holds."""
        if flow.differs or not (flow.cells or flow.parts):
            return flow
        parts = list(flattened(flow))
        cells = frozenset().union(*(part.cells for part in parts))
        held = mixed([*parts, self.run.memory.everything(cells)]) if flow.parts else self.run.memory.everything(cells)
        return replace(held, cells=flow.cells, parts=()) if held.differs else flow

    def _ifexp(self, node: ast.IfExp) -> Flow:
        test = self.of(node.test)
        is_apart = self.run.parts(node.test, self.whole(test))
        self.run.frame.unsure += is_apart
        either = joined(self.of(node.body), self.of(node.orelse))
        self.run.frame.unsure -= is_apart
        return replace(mixed([test, either]), cells=either.cells) if test.differs else either

    def _namedexpr(self, node: ast.NamedExpr) -> Flow:
        flow = self.of(node.value)
        self.run.bind(node.target, flow)
        return flow

    def _starred(self, node: ast.Starred) -> Flow:
        return self.element(gone_through(self.run, node.value, self.of(node.value)))

    def _await(self, node: ast.Await) -> Flow:
        return self.of(node.value)

    def _lambda(self, node: ast.Lambda) -> Flow:
        return self.run.functions.of(node)

    def _tuple(self, node: ast.Tuple) -> Flow:
        return Flow(parts=tuple(self.of(part) for part in node.elts))

    def _list(self, node: ast.List) -> Flow:
        cell = self.run.new_cell(node)
        for part in node.elts:
            self.run.memory.put(frozenset([cell]), None, self.of(part))
        return Flow(cells=frozenset([cell]))

    _set = _list

    def _dict(self, node: ast.Dict) -> Flow:
        cells = frozenset([self.run.new_cell(node)])
        for key, value in zip(node.keys, node.values):
            flow = self.of(value)
            if key is None:
                for name, held in self.run.memory.state.held_by(flow.cells):
                    self.run.memory.put(cells, name, held)
                flow = flow if flow.differs else NONE
            self.of(key)
            literal = key.value if isinstance(key, ast.Constant) else None
            if flow != NONE or key is not None:
                self.run.memory.put(cells, literal, flow)
        return Flow(cells=cells)

    def _listcomp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Flow:
        return self._comprehension(node, [node.elt])

    _setcomp = _generatorexp = _listcomp

    def _dictcomp(self, node: ast.DictComp) -> Flow:
        return self._comprehension(node, [node.value])

    def _comprehension(self, node: ast.expr, parts: list[ast.expr]) -> Flow:
        unsure, whole = 0, None
        for generator in node.generators:  # type: ignore[attr-defined]
            drawn = self.of(generator.iter)
            whole = self.run.domain.made_of_each(node, self.run.scope, drawn)
            self.run.bind(generator.target, self.run.turn(generator.iter, drawn))
            tests = [(test, self.whole(self.of(test))) for test in generator.ifs]
            unsure += sum([self.run.parts(generator.iter, drawn), *(self.run.parts(*test) for test in tests)])
        self.run.frame.unsure += bool(unsure)
        cell = self.run.new_cell(node)
        flow = self.of(parts[0])
        if unsure and not flow.differs:
            flow = mixed([self.whole(self.of(generator.iter)) for generator in node.generators])  # type: ignore[attr-defined]
        self.run.memory.put(frozenset([cell]), None, flow)
        self.run.frame.unsure -= bool(unsure)
        return whole or Flow(cells=frozenset([cell]))

    def _joinedstr(self, node: ast.JoinedStr) -> Flow:
        return mixed([self.whole(self.of(part)) for part in node.values])

    def _formattedvalue(self, node: ast.FormattedValue) -> Flow:
        return mixed([self.whole(self.of(node.value))])

    def _yield(self, node: ast.Yield) -> Flow:
        cell = self.run.new_cell(node)
        self.run.memory.put(frozenset([cell]), None, self.of(node.value))
        self.run.frame.give(Flow(cells=frozenset([cell])))
        return NONE

    def _yieldfrom(self, node: ast.YieldFrom) -> Flow:
        self.run.frame.give(self.of(node.value))
        return NONE


def _index(node: ast.expr) -> int | slice | None:
    """Return the index or the slice that is written down: 1, -1, 2:, None for another one."""
    parts = [node.lower, node.upper, node.step] if isinstance(node, ast.Slice) else [node]
    try:
        numbers = [None if part is None else ast.literal_eval(part) for part in parts]
    except (ValueError, TypeError):
        return None
    if isinstance(node, ast.Slice):
        is_known = all(isinstance(number, (int, type(None))) for number in numbers) and numbers[2] != 0
        return slice(*numbers) if is_known else None
    return numbers[0] if isinstance(numbers[0], int) else None


def owners(name: str, scope: Scope) -> list[ast.expr]:
    """Return what holds what a name is: `table` of `for row in self.table.values()` and `row = self.table[0]`."""
    found: dict[str, ast.expr] = {}
    for binding in (scope.find(name) or (scope, []))[1]:
        value: ast.expr | None = binding.value
        path = binding.path
        while isinstance(value, ast.Call) and getattr(value.func, "id", "") in ("zip", "enumerate") and path:
            index = path[0] if getattr(value.func, "id", "") == "zip" else 0
            value, path = (value.args[index] if index < len(value.args) else None), path[1:]
        is_view = isinstance(value, ast.Call) and getattr(value.func, "attr", "") in LOOKS_UP | LISTS_OBJECTS
        if binding.kind == "item" or is_view or isinstance(value, (ast.Subscript, ast.Attribute)):
            while isinstance(value, (ast.Subscript, ast.Call)) or _is_view(value):
                value = value.func if isinstance(value, ast.Call) else value.value  # type: ignore[union-attr]
            if isinstance(value, ast.Attribute) or (isinstance(value, ast.Name) and value.id != name):
                found[ast.unparse(value)] = value
    return list(found.values())


def _is_view(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Attribute) and value.attr in LOOKS_UP | LISTS_OBJECTS


def inputs_of(flow: Flow) -> frozenset[Root]:
    """Return the places that a value is computed from, that which it has itself among them."""
    return flow.inputs | ({flow.place} if flow.place is not None else frozenset())


def scope_of_name(node: ast.expr, scope: Scope) -> Scope:
    """Return the scope of the variable at the bottom of `a.b[c]`."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    found = scope.find(node.id) if isinstance(node, ast.Name) else None
    return found[0] if found else scope


def loaded(node: ast.expr) -> ast.expr:
    """Return the target of `x += 1` as an expression that is read."""
    if isinstance(node, ast.Name):
        return ast.copy_location(ast.Name(node.id, ast.Load()), node)
    if isinstance(node, ast.Attribute):
        return ast.copy_location(ast.Attribute(node.value, node.attr, ast.Load()), node)
    if isinstance(node, ast.Subscript):
        return ast.copy_location(ast.Subscript(node.value, node.slice, ast.Load()), node)
    return node
