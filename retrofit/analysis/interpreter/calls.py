"""Effects of calls: they run functions of the program, change objects, show values."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

from ..calls import is_method, is_property
from ..python_api import ADDS_ALL, GOES_THROUGH, MAPPINGS
from ..scopes import Scope, parameters
from ..values.attribute_names import is_taken_by_text
from ..values.fields import fields_of_tuple
from ..values.kinds import External, LocalClass, LocalFunction, Result, Values
from .by_text import cell_order, methods_by_text
from .callers import arguments_by_name
from .frames import Frame
from .function_values import Bound
from .objects import gone_through, keep_given, made_outside, set_by_name
from .state import NONE, Cell, Flow, joined, mixed, returned_by_either
from .templates import filled, is_template

if TYPE_CHECKING:
    from .interpreter import Interpreter

DEEPEST = 14
MOST_FUNCTIONS = 24  # that one call can run, of which each is followed
PASSED = "passed on"  # to something that nothing is known about


class _Meaning(NamedTuple):
    """What is known of a call whatever it is given; loops carry it out again and again."""

    goes_through: bool
    result: Flow | None
    changed: list[ast.expr]
    is_opaque: bool
    made: list[LocalClass]
    may_be_outside: bool
    fields: list[str]


class Calls:
    """Carries out calls in the running frame of an interpreter."""

    def __init__(self, run: Interpreter) -> None:
        self.run = run
        self._known: dict[tuple[ast.Call, Scope], _Meaning] = {}

    def of(self, node: ast.Call) -> Flow:
        run = self.run
        receiver = run.expressions.of(node.func.value) if isinstance(node.func, ast.Attribute) else NONE
        if isinstance(node.func, (ast.Call, ast.Subscript)):
            receiver = run.expressions.of(node.func)
        given = [run.expressions.of(part) for part in node.args]
        meaning = self._meaning(node)
        if meaning.goes_through:
            given = [gone_through(run, part, flow) for part, flow in zip(node.args, given)]
        named = [run.expressions.of(keyword.value) for keyword in node.keywords]
        if meaning.result is not None:
            self._bring_together(node)
            return run.expressions.settle_draws(meaning.result)
        if meaning.changed:
            self._make_same(meaning.changed)
            return NONE
        if set_by_name(run, node, given):
            return NONE
        self._hook(node)
        self._show(node, receiver, given, named)
        if is_template(node):
            return filled(run.expressions, node, given, named)
        functions = self._functions(node, receiver) if not meaning.is_opaque else []
        if not functions and receiver.cells and self._is_same_object(node):
            return receiver
        if functions:
            ran = self._run_all(node, functions, self.spread(node, given), named)
            if self._meaning(node).may_be_outside:
                ran = run.domain.either([ran, self._outside(node, receiver, [*given, *named])])
            if meaning.made and not ran.differs:
                ran = joined(ran, self._make_each(node, meaning.made, given, named))
            return run.expressions.settle_draws(ran)
        if meaning.made:
            return run.expressions.settle_draws(self._make_each(node, meaning.made, given, named))
        if meaning.fields:
            cells = frozenset([run.new_cell(node)])
            for name, flow in [*zip(meaning.fields, given), *((k.arg, flow) for k, flow in zip(node.keywords, named))]:
                run.memory.put(cells, name, flow)
            return Flow(cells=cells)
        made = run.functions.partial(node, given, named)
        if made.cells:
            return made
        changed = run.containers.method(node, receiver, given, named)
        if changed is not None:
            return changed
        handed = run.containers.handed_on(node, given)
        return handed if handed is not None else self._outside(node, receiver, [*given, *named])

    def _meaning(self, node: ast.Call) -> _Meaning:
        run, question = self.run, (node, self.run.scope)
        if question not in self._known:
            values = run.analysis.evaluate(node.func, run.scope)
            self._known[question] = _Meaning(
                self._goes_through(node),
                run.domain.result(node, run.scope),
                run.domain.changed(node, run.scope),
                run.domain.is_opaque(node, run.scope),
                self._classes(node, values),
                any(isinstance(v, (External, Result)) for v in values),
                fields_of_tuple(run.analysis, node, run.scope),
            )
        return self._known[question]

    def _goes_through(self, node: ast.Call) -> bool:
        """Return whether a function of Python, or a method of a list, goes through what it is given."""
        is_adding = isinstance(node.func, ast.Attribute) and node.func.attr in ADDS_ALL
        return is_adding or not GOES_THROUGH.isdisjoint(self.run.analysis.called(node, self.run.scope))

    def spread(self, node: ast.Call, given: list[Flow]) -> list[Flow]:
        """Return the arguments that a function gets: of `*values` each value by itself."""
        found: list[Flow] = []
        for part, flow in zip(node.args, given):
            values = self.run.expressions.of(part.value).parts if isinstance(part, ast.Starred) else ()
            found += values or [flow]
        return found

    def _hook(self, node: ast.Call) -> None:
        """Run a function that a library calls from now on, once, with what it gets then."""
        flow = self.run.domain.hooked(node)
        for value in self.run.analysis.evaluate(node.args[0], self.run.scope) if flow is not None else ():
            if isinstance(value, LocalFunction) and flow is not None:
                name = node.args[0]
                receiver = self.run.expressions.of(name.value) if isinstance(name, ast.Attribute) else NONE
                given = len(parameters(value.node)) - is_method(value.scope) - 1
                self.run_function(node, value, receiver, [NONE] * (given > 0) + [flow] * max(given, 1), [])

    def _show(self, node: ast.Call, receiver: Flow, given: list[Flow], named: list[Flow]) -> None:
        run = self.run
        kind = run.domain.sink(node, run.scope, isinstance(run.scope.source.parents.get(node), ast.Expr))
        if not kind:
            return
        nodes = [*node.args, *(keyword.value for keyword in node.keywords)]
        values = [*given, *named]
        if isinstance(node.func, ast.Attribute) and run.domain.shows_itself(node):
            nodes, values = [node.func.value, *nodes], [receiver, *values]
        hidden = run.domain.not_shown(node, run.scope)
        flows = [
            (part, run.expressions.whole(flow))
            for part, flow in zip(nodes, values)
            if part not in hidden
            if flow.differs or kind != PASSED or not any(cell.kind is not None for cell in flow.cells)
        ]
        run.show(node, kind, flows)

    def _functions(self, node: ast.Call, receiver: Flow) -> list[Bound]:
        """Return the functions of the program that a call runs, each with the object that it is a method of."""
        run = self.run
        if isinstance(node.func, ast.Attribute) and receiver.cells:
            found = []
            for cell in sorted(receiver.cells, key=cell_order):
                method = run.analysis.classes.method(cell.kind, node.func.attr) if cell.kind else None
                if method is not None:
                    found.append(Bound(method, Flow(cells=frozenset([cell]))))
            if found:
                return found
        taken = methods_by_text(run, node.func) if is_taken_by_text(node.func) else []  # type: ignore[arg-type]
        if taken:
            return [Bound(*pair) for pair in taken]
        callee = self._callee(node, receiver)
        called = [c for c in sorted(callee.cells, key=cell_order) if c.kind is not None]
        methods = [(run.analysis.classes.method(cell.kind, "__call__"), cell) for cell in called if cell.kind]
        known = [Bound(method, Flow(cells=frozenset([cell]))) for method, cell in methods if method is not None]
        if known:
            return known
        made = {method.scope for method in map(self._constructor, self._meaning(node).made) if method is not None}
        functions = [f for f in run.analysis.functions_called(node, run.scope) if f.scope not in made]
        held = run.functions.held_by(callee)
        of_values = {bound.function.scope for bound in held}
        named = {function.scope for function in functions}
        held = [bound._replace(is_value=bound.function.scope not in named) for bound in held]
        others = [Bound(f, self._some_object(f, node)) for f in functions if f.scope not in of_values]
        return [*held, *others]

    def _callee(self, node: ast.Call, receiver: Flow) -> Flow:
        """Return what is known of the value that is called."""
        run, function = self.run, node.func
        if isinstance(function, ast.Name):
            return run.expressions.of(function)
        if isinstance(function, ast.Attribute):
            held = run.memory.field(receiver.cells, function.attr) if receiver.cells else None
            if held is not None or not isinstance(function.value, (ast.Name, ast.Attribute)):
                return held or NONE
            return run.memory.state.get((run.root_scope(function), ast.unparse(function))) or NONE
        return receiver

    def _some_object(self, function: LocalFunction, node: ast.Call) -> Flow:
        """Return the object of a method where it is not known which one that is."""
        run = self.run
        is_own = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call)
        if is_own and getattr(node.func.value.func, "id", "") == "super":  # type: ignore[union-attr, attr-defined]
            return run.frame.receiver
        owner = function.scope.parent
        is_of_class = owner is not None and isinstance(owner.node, ast.ClassDef)
        return Flow(cells=frozenset([Cell(owner.node, (), owner)])) if is_of_class and owner is not None else NONE

    def _is_same_object(self, node: ast.Call) -> bool:
        """Return whether a method of a library gives the object itself that it is of."""
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        return name in self.run.analysis.library.same_methods

    def _run_all(self, node: ast.Call, functions: list[Bound], given: list[Flow], named: list[Flow]) -> Flow:
        run, result, ends = self.run, None, []
        before = run.memory.state.copy()
        for bound in functions[:MOST_FUNCTIONS]:
            run.memory.state = before.copy()
            flow = self._run_bound(node, bound, given, named)
            result = flow if result is None else returned_by_either(result, flow)
            ends.append(run.memory.state)
        run.memory.meet(ends)
        run.is_cut |= len(functions) > MOST_FUNCTIONS and any(
            run.expressions.whole(f).differs for f in (*given, *named)
        )
        return result or NONE

    def _run_bound(self, node: ast.Call, bound: Bound, given: list[Flow], named: list[Flow]) -> Flow:
        return self.run_function(node, bound.function, bound.receiver, given, named, bound)

    def run_function(
        self, node: ast.AST, function: LocalFunction, receiver: Flow, given: list[Flow], named: list[Flow],
        bound: Bound | None = None,
    ) -> Flow:  # fmt: skip
        """Run a function with the arguments of a call, after those that are `bound` to it; return what it gives."""
        run = self.run
        before = bound.given if bound is not None else ()
        is_open = any(frame.scope is function.scope for frame in run.frames)
        if is_open or len(run.frames) > DEEPEST or not run.has_time():
            passed = mixed([run.expressions.whole(flow) for flow in (*before, *given, *named)])
            run.is_cut |= passed.differs and not is_open
            return passed
        run.memory.forget(function.scope)
        positional = self._bind_arguments(node, function, receiver, [*before, *given], named)
        for name, flow in bound.named if bound is not None else ():
            if name is not None and (function.scope, name) not in run.memory.state:
                run.memory.store(name, function.scope, flow)
        calls, rest = (*run.frame.calls[-3:], node), function.node.args.vararg
        is_value = bound is not None and bound.is_value
        known = {} if is_value else arguments_by_name(node, positional[len(before) :], rest, given, named)
        return run.run_frame(Frame(function.scope, calls, unsure=run.frame.unsure, receiver=receiver, given=known))

    def _bind_arguments(
        self, node: ast.AST, function: LocalFunction, receiver: Flow, given: list[Flow], named: list[Flow]
    ) -> list[str]:
        """Store what a function is given; return the names of its positional parameters, without `self`."""
        run, scope, arguments = self.run, function.scope, function.node.args
        names = parameters(function.node)
        if is_method(scope) and names:
            run.memory.store(names[0], scope, receiver)
            names = names[1:]
        positional = [part.arg for part in (*arguments.posonlyargs, *arguments.args)]
        positional = [name for name in positional if name in names]
        for name, flow in zip(positional, given):
            run.memory.store(name, scope, flow)
        if arguments.vararg is not None:
            run.memory.store(arguments.vararg.arg, scope, Flow(parts=tuple(given[len(positional) :])))
        keywords = node.keywords if isinstance(node, ast.Call) else []
        others = run.new_cell(function.node)
        for keyword, flow in zip(keywords, named):
            if keyword.arg in names:
                run.memory.store(keyword.arg, scope, flow)
            else:
                run.memory.put(frozenset([others]), keyword.arg, flow)
                if keyword.arg is None:
                    held = run.expressions.whole(flow)
                    if held.differs:
                        for name in names:
                            if (scope, name) not in run.memory.state:
                                run.memory.store(name, scope, mixed([held]))
        if arguments.kwarg is not None:
            run.memory.store(arguments.kwarg.arg, scope, Flow(cells=frozenset([others])))
        return positional

    def _classes(self, node: ast.Call, values: Values) -> list[LocalClass]:
        """Return the classes that a call makes an object of: of several those that take its arguments."""
        classes = sorted((value for value in values if isinstance(value, LocalClass)), key=_place_of_class)
        if len(classes) < 2:
            return classes
        called = {function.scope for function in self.run.analysis.functions_called(node, self.run.scope)}
        constructors = {made: self._constructor(made) for made in classes}
        fitting = [made for made, method in constructors.items() if method is None or method.scope in called]
        return (fitting or classes)[:MOST_FUNCTIONS]

    def _constructor(self, made: LocalClass) -> LocalFunction | None:
        return self.run.analysis.classes.method(made.scope, "__init__")

    def _make_each(self, node: ast.Call, classes: list[LocalClass], given: list[Flow], named: list[Flow]) -> Flow:
        flow = self._make(node, classes[0], given, named)
        for made in classes[1:]:
            flow = joined(flow, self._make(node, made, given, named))
        return flow

    def _make(self, node: ast.Call, made: LocalClass, given: list[Flow], named: list[Flow]) -> Flow:
        run = self.run
        cell = run.new_cell(node, made.scope)
        flow = Flow(cells=frozenset([cell]))
        run.memory.state.drop(cell)
        method = self._constructor(made)
        if method is not None and not run.domain.is_made_unseen(made.scope):
            self.run_function(node, method, flow, given, named)
        elif method is None and (containers := run.containers.of_class(made.scope)):
            run.containers.fill_new(flow.cells, node, self.spread(node, given), named, bool(containers & MAPPINGS))
        elif method is None:
            names = [part.target.id for part in made.scope.node.body if isinstance(part, ast.AnnAssign)]  # type: ignore[union-attr]
            for name, value in zip(names, given):  # a dataclass or a named tuple
                run.memory.put(flow.cells, name, value)
            for keyword, value in zip(node.keywords, named):
                run.memory.put(flow.cells, keyword.arg, value)
        return flow

    def of_property(self, base: Flow, name: str) -> Flow | None:
        """Return what a property of an object gives, or an attribute of its class; None where there is neither."""
        run = self.run
        for cell in sorted(base.cells, key=cell_order):
            if cell.kind is None:
                continue
            method = run.analysis.classes.method(cell.kind, name)
            if method is not None and is_property(method.node):
                return self.run_function(method.node, method, Flow(cells=frozenset([cell])), [], [])
            for parent in run.analysis.classes.mro(cell.kind):
                if (parent, name) in run.memory.state:
                    return run.memory.state[parent, name]
        return None

    def _outside(self, node: ast.Call, receiver: Flow, flows: list[Flow]) -> Flow:
        run = self.run
        whole = [run.expressions.whole(flow) for flow in flows]
        if isinstance(node.func, ast.Attribute) and any(flow.differs for flow in whole):
            parent = run.scope.source.parents.get(node)
            if isinstance(parent, ast.Expr) and isinstance(node.func.value, (ast.Name, ast.Attribute, ast.Subscript)):
                values = run.analysis.named(node.func.value, run.scope)
                packages = {name.partition(".")[0] for name in values}
                is_kept = node.func.attr.endswith("_") and self._is_made(node.func.value)  # `counts.add_(hits)`
                is_kept = is_kept or packages.isdisjoint(run.analysis.library.functional_packages)
                if not receiver.differs and is_kept:
                    run.taint(node.func.value, mixed(whole))
        is_object = any(cell.kind is not None for cell in receiver.cells)
        base = receiver if is_object else run.expressions.whole(receiver)
        written = run.domain.written(node, run.scope)
        keywords = [None] * len(node.args) + [keyword.value for keyword in node.keywords]  # type: ignore[list-item]
        flow = run.domain.call(node, run.scope, base, [f for f, k in zip(whole, keywords) if k not in written])
        for target in written:
            run.bind(target, flow)
        keep_given(run, node, receiver, whole)
        return flow if flow.differs or flow.is_drawn else made_outside(run, node)

    def _is_made(self, node: ast.expr) -> bool:
        """Return whether an expression is an object that a call of a library has made, and no module."""
        values = self.run.analysis.evaluate(node, self.run.scope)
        return bool(values) and all(isinstance(value, Result) for value in values)

    def _make_same(self, changed: list[ast.expr]) -> None:
        run = self.run
        for part in changed:
            for cell in run.expressions.of(part).cells:
                for key, _ in run.memory.state.held_by([cell]):
                    run.memory.state[cell, key] = NONE
            if isinstance(part, (ast.Name, ast.Attribute, ast.Subscript)):
                run.bind(part, NONE)

    def _bring_together(self, node: ast.Call) -> None:
        """Let attributes of an object be those of all processes, where a call makes them so."""
        run = self.run
        names = run.domain.attributes_brought_together(node, run.scope)
        for cell in run.expressions.of(node.args[0]).cells if names else ():
            for name in names:
                run.memory.state[cell, name] = NONE


def _place_of_class(made: LocalClass) -> tuple[str, int]:
    return made.scope.source.name, made.scope.node.lineno  # type: ignore[union-attr]
