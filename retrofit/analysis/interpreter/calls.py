"""Effects of calls: they run functions of the program, change objects, show values."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from ..calls import is_method, is_property
from ..python_api import ADDS_ALL, ADDS_ONE, AS_CONTAINERS, AS_DICT, CONTAINERS, EMPTIES, MAPPINGS, SCALARS, TAKES
from ..scopes import parameters
from ..values.attribute_names import is_taken_by_text
from ..values.kinds import External, LocalClass, LocalFunction, Result
from ..values.named_tuples import fields_of_tuple
from .by_text import attribute_by_text, cell_order, methods_by_text
from .callers import arguments_by_name
from .frames import Frame
from .state import NONE, Cell, Flow, joined, mixed
from .templates import filled, is_template

if TYPE_CHECKING:
    from .interpreter import Interpreter

DEEPEST = 14
MOST_FUNCTIONS = 8  # that one call can run, of which each is followed
PASSED = "passed on"  # to something that nothing is known about


class Calls:
    """Carries out calls in the running frame of an interpreter."""

    def __init__(self, run: Interpreter) -> None:
        self.run = run

    def of(self, node: ast.Call) -> Flow:
        run = self.run
        receiver = run.expressions.of(node.func.value) if isinstance(node.func, ast.Attribute) else NONE
        if isinstance(node.func, (ast.Call, ast.Subscript)):
            receiver = run.expressions.of(node.func)
        given = [run.expressions.of(part) for part in node.args]
        named = [run.expressions.of(keyword.value) for keyword in node.keywords]
        drawn = run.domain.draws(node, run.scope)
        if drawn is not None:
            return self._source(node, drawn)
        known = run.domain.result(node, run.scope)
        if known is not None:
            self._bring_together(node)
            return run.expressions.settle_draws(known)
        same = run.domain.changed(node, run.scope)
        if same:
            self._make_same(same)
            return NONE
        self._show(node, receiver, given, named)
        if is_template(node):
            return filled(run.expressions, node, given, named)
        functions = self._functions(node, receiver)
        if functions:
            return run.expressions.settle_draws(
                self._run_all(node, functions, receiver, self._spread(node, given), named)
            )
        classes = [v for v in run.analysis.evaluate(node.func, run.scope) if isinstance(v, LocalClass)]
        if classes:
            return run.expressions.settle_draws(self._make(node, classes[0], given, named))
        fields = fields_of_tuple(run.analysis, node, run.scope)
        if fields:
            cells = frozenset([run.new_cell(node)])
            for name, flow in [*zip(fields, given), *((k.arg, flow) for k, flow in zip(node.keywords, named))]:
                run.memory.put(cells, name, flow)
            return Flow(cells=cells)
        changed = self._method_of_container(node, receiver, given, named)
        if changed is not None:
            return changed
        handed = self._handed_on(node, given)
        return handed if handed is not None else self._outside(node, receiver, [*given, *named])

    def _source(self, node: ast.Call, drawn: Flow) -> Flow:
        cell = self.run.new_cell(node, is_source=True)
        self.run.memory.state[cell, None] = drawn
        return Flow(cells=frozenset([cell]))

    def _handed_on(self, node: ast.Call, given: list[Flow]) -> Flow | None:
        """Return what an iterator or a container made from others holds; None for any other call."""
        run = self.run
        names = run.analysis.called(node, run.scope)
        if not given and not names & CONTAINERS:
            return None
        if names & AS_CONTAINERS and given[0].cells:
            return self._copied(node, names, given[:1])
        if is_taken_by_text(node) and given[0].cells:
            return attribute_by_text(run, node, given[0])
        if names & {"enumerate", "zip"}:
            inner = [run.turn(part, flow) for part, flow in zip(node.args, given)]
            parts = Flow(parts=(NONE, inner[0]) if "enumerate" in names else tuple(inner))
            is_source = any(cell.is_source for flow in given for cell in flow.cells)
            if is_source or any(flow.cells or flow.parts for flow in given):
                cell = run.new_cell(node, is_source=is_source)
                run.memory.state[cell, None] = parts
                return Flow(cells=frozenset([cell]))
            return None
        if names & {"next"}:
            element = run.turn(node.args[0], given[0])
            return element if element.differs or element.parts else None
        if names & {"map"} and len(given) == 2:
            return self._mapped(node, given[1])
        if given and run.domain.hands_on(node, run.scope) and given[0].cells:
            return given[0]
        return self._copied(node, names, given) if names & CONTAINERS else None

    def _mapped(self, node: ast.Call, flow: Flow) -> Flow | None:
        """Return what a function of the program makes of each entry: map(lambda part: part.copy(), batch)."""
        functions = self.run.analysis.evaluate(node.args[0], self.run.scope)
        known = [function for function in functions if isinstance(function, LocalFunction)]
        if len(known) != 1 or flow.cells or not (flow.parts or flow.differs):
            return None
        if flow.parts:
            return Flow(parts=tuple(self.run_function(node.func, known[0], NONE, [part], []) for part in flow.parts))
        entry = self.run.domain.item(flow, ast.Constant("0"), NONE)
        return self.run_function(node.func, known[0], NONE, [entry], [])

    def _copied(self, node: ast.Call, names: set[str], given: list[Flow]) -> Flow:
        """Return a new container with what another one holds: dict(table), OrderedDict(pairs), defaultdict(list)."""
        run, cells = self.run, frozenset([self.run.new_cell(node)])
        if names & {"collections.defaultdict"}:
            made = self._default(node)
            if made is not None:
                run.memory.put(cells, None, made)
            return Flow(cells=cells)
        for flow in given:
            for (owner, key), held in list(run.memory.state.items()):
                if owner in flow.cells:
                    is_pair = len(held.parts) == 2 and bool(names & MAPPINGS)
                    run.memory.put(cells, key, held.parts[1] if is_pair else held)
            for part in flow.parts:
                run.memory.put(cells, None, part)
        for keyword in node.keywords:
            run.memory.put(cells, keyword.arg, run.expressions.of(keyword.value))
        whole = [replace(flow, cells=frozenset(), parts=()) for flow in given if flow.differs]
        return whole[0] if whole else Flow(cells=cells)

    def _spread(self, node: ast.Call, given: list[Flow]) -> list[Flow]:
        """Return the arguments that a function gets: of `*values` each value by itself."""
        found: list[Flow] = []
        for part, flow in zip(node.args, given):
            values = self.run.expressions.of(part.value).parts if isinstance(part, ast.Starred) else ()
            found += values or [flow]
        return found

    def _default(self, node: ast.Call) -> Flow | None:
        run = self.run
        if not node.args:
            return None
        for value in run.analysis.evaluate(node.args[0], run.scope):
            if isinstance(value, LocalClass):
                return Flow(cells=frozenset([run.new_cell(node.args[0], value.scope)]))
            if isinstance(value, LocalFunction):
                return self.run_function(node, value, NONE, [], [])
            if isinstance(value, External) and value.name in SCALARS:
                return NONE
        return Flow(cells=frozenset([run.new_cell(node.args[0])]))

    def _show(self, node: ast.Call, receiver: Flow, given: list[Flow], named: list[Flow]) -> None:
        run = self.run
        kind = run.domain.sink(node, run.scope, isinstance(run.scope.source.parents.get(node), ast.Expr))
        if not kind:
            return
        nodes = [*node.args, *(keyword.value for keyword in node.keywords)]
        flows = [
            (part, run.expressions.whole(flow))
            for part, flow in zip(nodes, [*given, *named])
            if flow.differs or kind != PASSED or not any(cell.kind is not None for cell in flow.cells)
        ]
        run.show(node, kind, flows)

    def _functions(self, node: ast.Call, receiver: Flow) -> list[tuple[LocalFunction, Flow]]:
        """Return the functions of the program that a call runs, each with the object that it is a method of."""
        run = self.run
        if run.domain.is_opaque(node, run.scope):
            return []
        if isinstance(node.func, ast.Attribute) and receiver.cells:
            found = []
            for cell in sorted(receiver.cells, key=cell_order):
                method = run.analysis.classes.method(cell.kind, node.func.attr) if cell.kind else None
                if method is not None:
                    found.append((method, Flow(cells=frozenset([cell]))))
            if found:
                return found
        taken = methods_by_text(run, node.func) if is_taken_by_text(node.func) else []  # type: ignore[arg-type]
        if taken:
            return taken
        callee = run.expressions.of(node.func) if isinstance(node.func, ast.Name) else NONE
        called = [c for c in sorted(callee.cells, key=cell_order) if c.kind is not None]
        methods = [(run.analysis.classes.method(cell.kind, "__call__"), cell) for cell in called if cell.kind]
        known = [(method, Flow(cells=frozenset([cell]))) for method, cell in methods if method is not None]
        if known:
            return known
        values = run.analysis.evaluate(node.func, run.scope)
        if any(isinstance(value, LocalClass) for value in values):
            return []
        functions = run.analysis.functions_called(node, run.scope)
        return [(function, self._some_object(function, node)) for function in functions]

    def _some_object(self, function: LocalFunction, node: ast.Call) -> Flow:
        """Return the object of a method where it is not known which one that is."""
        run = self.run
        is_own = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call)
        if is_own and getattr(node.func.value.func, "id", "") == "super":  # type: ignore[union-attr, attr-defined]
            return run.frame.receiver
        owner = function.scope.parent
        is_of_class = owner is not None and isinstance(owner.node, ast.ClassDef)
        return Flow(cells=frozenset([Cell(owner.node, (), owner)])) if is_of_class and owner is not None else NONE

    def _run_all(
        self, node: ast.Call, functions: list[tuple[LocalFunction, Flow]], receiver: Flow, given: list[Flow],
        named: list[Flow],
    ) -> Flow:  # fmt: skip
        run, result, ends = self.run, None, []
        before = dict(run.memory.state)
        for function, self_flow in functions[:MOST_FUNCTIONS]:
            run.memory.state = dict(before)
            flow = self.run_function(node, function, self_flow, given, named)
            result = flow if result is None else joined(result, flow)
            ends.append(run.memory.state)
        run.memory.meet(ends)
        return result or NONE

    def run_function(
        self, node: ast.AST, function: LocalFunction, receiver: Flow, given: list[Flow], named: list[Flow]
    ) -> Flow:
        """Run a function with the arguments of a call and return what it gives."""
        run = self.run
        is_open = any(frame.scope is function.scope for frame in run.frames)
        if is_open or len(run.frames) > DEEPEST or not run.has_time():
            return mixed([run.expressions.whole(flow) for flow in (*given, *named)])
        run.memory.forget(function.scope)
        positional = self._bind_arguments(node, function, receiver, given, named)
        calls, known = (*run.frame.calls[-3:], node), arguments_by_name(node, positional, given, named)
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

    def _make(self, node: ast.Call, made: LocalClass, given: list[Flow], named: list[Flow]) -> Flow:
        run = self.run
        cell = run.new_cell(node, made.scope)
        flow = Flow(cells=frozenset([cell]))
        for variable in [variable for variable in run.memory.state if variable[0] == cell]:
            del run.memory.state[variable]
        method = run.analysis.classes.method(made.scope, "__init__")
        if method is not None and not run.domain.is_opaque(node, run.scope):
            self.run_function(node, method, flow, given, named)
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

    def _method_of_container(self, node: ast.Call, receiver: Flow, given: list[Flow], named: list[Flow]) -> Flow | None:
        """Carry out `list.append(x)`, `dict.update(...)`, `dict.items()`; None for other calls."""
        if not isinstance(node.func, ast.Attribute) or self.run.domain.written(node, self.run.scope):
            return None
        run, name, flows = self.run, node.func.attr, [*given, *named]
        cells = frozenset(cell for cell in receiver.cells if self._is_container(cell))
        if name in EMPTIES and cells:
            for variable in [variable for variable in run.memory.state if variable[0] in cells]:
                del run.memory.state[variable]
            return NONE
        if name in ADDS_ONE | ADDS_ALL and (cells or isinstance(run.scope.source.parents.get(node), ast.Expr)):
            self._fill(node, cells, name, given, named)
            return run.expressions.element(receiver) if name == "setdefault" else NONE
        if name == AS_DICT and receiver.cells:
            return self._copied(node, set(), [receiver])
        if name not in TAKES or not cells:
            return None
        if name in ("values", "copy"):
            return Flow(cells=cells, kind=receiver.kind, roots=receiver.roots)
        if name == "items":
            pair = Flow(parts=(NONE, run.expressions.element(Flow(cells=cells))))
            cell = run.new_cell(node)
            run.memory.state[cell, None] = pair
            return Flow(cells=frozenset([cell]))
        literal = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
        held = run.memory.field(cells, literal) if literal is not None and name in ("get", "pop") else None
        found = held if held is not None else run.expressions.element(Flow(cells=cells))
        return joined(found, flows[1]) if len(flows) > 1 else found

    def _is_container(self, cell: Cell) -> bool:
        """Return whether an object is a list or a dict, or of a class of the project that is derived from them."""
        return cell.kind is None or bool(self.run.analysis.classes.bases(cell.kind) & CONTAINERS)

    def _fill(self, node: ast.Call, cells: frozenset[Cell], name: str, given: list[Flow], named: list[Flow]) -> None:
        run = self.run
        for keyword, flow in zip(node.keywords, named):
            run.memory.put(cells, keyword.arg, run.kept(cells, flow))
        for flow in given:
            inner = flow
            if name in ADDS_ALL and cells:
                for (owner, key), held in list(run.memory.state.items()):
                    if owner in flow.cells:
                        run.memory.put(cells, key, run.kept(cells, held))
                inner = flow if flow.differs else NONE
            if cells:
                run.memory.put(cells, None, run.kept(cells, inner))
        whole = mixed([run.expressions.whole(flow) for flow in (*given, *named)])
        if not cells and whole.differs:  # of an object that nothing is known about
            run.taint(node.func.value, whole)  # type: ignore[attr-defined]

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
        return flow

    def _is_made(self, node: ast.expr) -> bool:
        """Return whether an expression is an object that a call of a library has made, and no module."""
        values = self.run.analysis.evaluate(node, self.run.scope)
        return bool(values) and all(isinstance(value, Result) for value in values)

    def _make_same(self, changed: list[ast.expr]) -> None:
        run = self.run
        for part in changed:
            for cell in run.expressions.of(part).cells:
                for variable in [variable for variable in run.memory.state if variable[0] == cell]:
                    run.memory.state[variable] = NONE
            if isinstance(part, (ast.Name, ast.Attribute, ast.Subscript)):
                run.bind(part, NONE)

    def _bring_together(self, node: ast.Call) -> None:
        """Let attributes of an object be those of all processes, where a call makes them so."""
        run = self.run
        names = run.domain.attributes_brought_together(node, run.scope)
        for cell in run.expressions.of(node.args[0]).cells if names else ():
            for name in names:
                run.memory.state[cell, name] = NONE
