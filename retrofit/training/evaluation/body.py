"""Statements of an evaluation's loop by what they do with a batch: add it up, show something, or more than that."""

from __future__ import annotations

import ast

from retrofit.analysis.flow.name_uses import loaded_names, name_uses, stored_names
from retrofit.analysis.nodes import walk
from retrofit.analysis.python_api import CLOCKS
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.kinds import Instance, LocalFunction
from retrofit.training.torch_api.output import BAR_METHODS, BARS

from ..data.batches import numbers_in
from ..files.outputs import PRINT, Output
from .loop import Loop, NotShareable, calls_in, root_name
from .meters import LIST, METER, SUM, Accumulator, Meter, meter_of


class Body:
    """Reads the statements of a loop. `accumulators` by their text, `own` the names that belong to one batch."""

    def __init__(self, loop: Loop, outputs: list[Output]) -> None:
        self.loop, self.analysis, self.scope = loop.node, loop.analysis, loop.scope
        self.outputs = {output.call: output for output in outputs}
        self.accumulators: dict[str, Accumulator] = {}
        self.clocks = self._clocks()
        self.own = self._own_names()
        self.numbers = numbers_in(loop.analysis, loop.node, loop.scope)
        self.shown = self._shown_names()

    def read(self) -> None:
        """Fill `accumulators`. Raises NotShareable."""
        for statement in self.loop.body:
            self._statement(statement, always=True)

    def _own_names(self) -> set[str]:
        """Return the names that belong to one batch: in every batch they are written before they are read."""
        first: dict[str, type] = {}
        for name in name_uses([self.loop.target, *self.loop.body]):
            first.setdefault(name.id, type(name.ctx))
        return {name for name, context in first.items() if context is ast.Store} - self.clocks

    def _shown_names(self) -> set[str]:
        """Return the names of one batch that are made to be shown, and read by nothing else."""
        showing = [node for node in walk(self.loop) if isinstance(node, ast.stmt) and self._shows(node)]
        inside = {part for statement in showing for part in walk(statement)}
        others = {
            name.id for name in name_uses(self.loop.body) if isinstance(name.ctx, ast.Load) and name not in inside
        }
        return (loaded_names(showing) & self.own) - others

    def _clocks(self) -> set[str]:
        """Return the names that hold the time: what they measure is another one on every run anyway."""
        given = {
            name: [binding.value for binding in self.scope.bindings.get(name, [])]
            for name in stored_names(self.loop.body)
        }
        return {
            name
            for name, values in given.items()
            if values and all(isinstance(v, ast.Call) and self.analysis.called(v, self.scope) & CLOCKS for v in values)
        }

    def _statement(self, statement: ast.stmt, always: bool) -> None:
        if self._shows(statement):
            return
        if isinstance(statement, ast.If):
            if all(self._shows(inner) for inner in [*statement.body, *statement.orelse]):
                return
            self._expression(statement.test)
            for inner in [*statement.body, *statement.orelse]:
                self._statement(inner, always=False)
        elif isinstance(statement, ast.With):
            for item in statement.items:
                self._expression(item.context_expr)
            for inner in statement.body:
                self._statement(inner, always)
        elif isinstance(statement, ast.For) and not statement.orelse:
            self._expression(statement.iter)
            for inner in statement.body:
                self._statement(inner, always=False)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            self._assignment(statement)
        elif isinstance(statement, ast.Expr):
            self._call(statement.value, always)
        elif isinstance(statement, ast.Assert):
            self._expression(statement.test)
        elif not isinstance(statement, (ast.Pass, ast.Delete)):
            raise NotShareable(f"line {statement.lineno} does more than add up")

    def _assignment(self, statement: ast.Assign | ast.AnnAssign | ast.AugAssign) -> None:
        added = _added_to(statement)
        name = root_name(added) if added is not None else None
        if name is not None and name not in self.own:
            self._expression(statement.value)  # type: ignore[arg-type]
            if isinstance(added, ast.Subscript):
                self._expression(added.slice)
            self._accumulate(SUM, ast.Name(name, ast.Load()))
            return
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        if stored_names(targets) and stored_names(targets) <= self.shown:
            for call in calls_in(statement):
                self._require_pure(call, self.scope, set())
            return
        for target in targets:
            for part in walk(target):
                is_foreign = isinstance(part, ast.Name) and part.id not in (self.own | self.clocks)
                if is_foreign or isinstance(part, ast.Attribute):
                    raise NotShareable(f"line {statement.lineno} keeps something of one batch")
        if statement.value is not None:
            self._expression(statement.value)

    def _call(self, node: ast.expr, always: bool) -> None:
        if isinstance(node, ast.Constant):
            return
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            raise NotShareable(f"line {node.lineno} does more than add up")
        receiver = node.func.value
        if root_name(receiver) in self.own:  # a tensor or a list of this batch alone
            self._expression(node)
            return
        for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
            self._expression(argument)
        if node.func.attr == "append" and isinstance(receiver, ast.Name) and len(node.args) == 1:
            if not always or ast.unparse(receiver) in self.accumulators:
                raise NotShareable(f"line {node.lineno} does not append one entry per batch")
            self._accumulate(LIST, receiver)
            return
        meters = [
            meter_of(self.analysis, value, node.func.attr)
            for value in self.analysis.evaluate(receiver, self.scope)
            if isinstance(value, Instance)
        ]
        if not meters or any(meter != meters[0] for meter in meters) or meters[0] is None:
            raise NotShareable(f"line {node.lineno} does more than add up")
        self._accumulate(METER, receiver, meters[0])

    def _accumulate(self, kind: str, target: ast.expr, meter: Meter | None = None) -> None:
        accumulator = Accumulator(kind, target, meter)
        known = self.accumulators.setdefault(ast.unparse(target), accumulator)
        if known.kind != kind or known.meter != meter:
            raise NotShareable(f"{ast.unparse(target)} is added to in two ways")

    def _expression(self, node: ast.expr) -> None:
        """Require that an expression is of this batch, and leaves no trace."""
        names = loaded_names([node])
        if names & self.numbers:
            raise NotShareable(f"line {node.lineno} depends on the number of the batch")
        for accumulator in self.accumulators.values():
            if any(ast.unparse(part) == ast.unparse(accumulator.target) for part in walk(node)):
                raise NotShareable(f"line {node.lineno} reads what the batches before have added up")
        for call in calls_in(node):
            self._require_pure(call, self.scope, set())

    def _require_pure(self, call: ast.Call, scope: Scope, seen: set[ast.AST]) -> None:
        if call in self.outputs and self.outputs[call].kind != PRINT:
            raise NotShareable(f"{scope.source.place(call)} writes something for each batch")
        for function in self.analysis.functions_called(call, scope):
            if function.node in seen:
                continue
            seen.add(function.node)
            is_new = getattr(function.node, "name", "") == "__init__"
            for node in own_nodes(function.node).of(ast.Attribute, ast.Global, ast.Nonlocal, ast.Call):
                is_kept = isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load) and not is_new
                if is_kept or isinstance(node, (ast.Global, ast.Nonlocal)):
                    raise NotShareable(f"{function.scope.source.place(node)} keeps something of one batch")
                if isinstance(node, ast.Attribute) and node.attr == "backward":
                    raise NotShareable(f"{function.scope.source.place(node)} belongs to the training")
                if isinstance(node, ast.Call):
                    self._require_pure(node, function.scope, seen)

    def _shows(self, statement: ast.stmt) -> bool:
        """Return whether a statement only shows how far the evaluation is."""
        if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
            return False
        call = statement.value
        names = self.analysis.called(call, self.scope)
        if names == {"print"} or any(name.startswith("logging.") for name in names):
            return not any(isinstance(v, LocalFunction) for v in self.analysis.evaluate(call.func, self.scope))
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in BAR_METHODS:
            return False
        root = root_name(call.func.value)
        bindings = self.scope.bindings.get(root, []) if root else []
        made = [binding.value for binding in bindings if isinstance(binding.value, ast.Call)]
        return bool(made) and all(self.analysis.called(value, self.scope) & BARS for value in made)


def _added_to(statement: ast.stmt) -> ast.expr | None:
    """Return what `total += x`, `total = total + x` and `counts[i] += x` add to."""
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        return statement.target if isinstance(statement.target, (ast.Name, ast.Subscript)) else None
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.value, ast.BinOp):
        target, value = statement.targets[0], statement.value
        if isinstance(target, ast.Name) and isinstance(value.op, ast.Add) and isinstance(value.left, ast.Name):
            return target if value.left.id == target.id else None
    return None
