"""Surroundings of an evaluation's loop: accumulators that start from zero, and nothing of the last batch read later."""

from __future__ import annotations

import ast
from string import Formatter

from retrofit.analysis.flow.name_uses import name_uses
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import end_of, own_nodes, place_of

from ..loops import LOOPS
from .initial_values import is_passed_before, is_zero, start_statement, value_given
from .loop import Loop, NotShareable, root_name
from .meters import LIST, METER, SUM, Accumulator


class Afterwards:
    """Looks at the function around a loop; `own` are the names that belong to one batch."""

    def __init__(self, loop: Loop, own: set[str]) -> None:
        self.loop, self.analysis, self.scope, self.source = loop.node, loop.analysis, loop.scope, loop.source
        self.own = own

    def require_own_names_to_stay_inside(self) -> None:
        """Raise when a name of the last batch is read after the loop, or before it the next time round."""
        later = self._later()
        for name in sorted(self.own):
            first = next((occurrence for occurrence in later if occurrence.id == name), None)
            if first is not None and isinstance(first.ctx, ast.Load):
                raise NotShareable(f"{name}, of the last batch, is read again in line {first.lineno}")
        if self.scope.parent is None and any(self._is_read_by_function(name) for name in self.own):
            raise NotShareable("a function reads what the last batch has left")

    def _later(self) -> list[ast.Name]:
        """Return the names after the loop in the order in which they are reached, then those of outer loops."""
        around = [outer for outer in self.source.ancestors(self.loop) if isinstance(outer, LOOPS)]
        around = [outer for outer in around if self.analysis.scope_at(self.source, outer) is self.scope]
        inside = set(walk(self.loop))
        body = getattr(self.scope.node, "body", [])
        everything = [name for name in name_uses(body) if name not in inside]
        end = end_of(self.loop)
        later = [name for name in everything if place_of(name) >= end]
        if around:
            again = set(walk(around[-1]))
            start, stop = place_of(around[-1]), place_of(self.loop)
            earlier = [n for n in everything if start <= place_of(n) < stop]
            within = [n for n in later if n in again or n.lineno <= (around[-1].end_lineno or 0)]
            beyond = [n for n in later if n not in within]
            return [*within, *earlier, *beyond]
        return later

    def _is_read_by_function(self, name: str) -> bool:
        return any(
            isinstance(node, ast.Name) and node.id == name and (inner.find(name) or (None,))[0] is self.scope
            for inner in self.scope.walk()
            if inner is not self.scope
            for node in own_nodes(inner.node)
        )

    def require_fresh(self, accumulator: Accumulator) -> None:
        """Raise unless an accumulator starts from zero: what was in it before would count once per process."""
        name = root_name(accumulator.target)
        text = ast.unparse(accumulator.target)
        if name is None or name in self.scope.outer_names:
            raise NotShareable(f"{text} lives outside the function")
        if accumulator.kind == METER and self._is_reset(text):
            return
        start = start_statement(self.scope, self.loop, name)
        if start is None:
            raise NotShareable(f"{text} is not set again before it")
        is_fresh = {
            SUM: lambda: is_zero(self.analysis, start, name, self.scope),
            LIST: lambda: _is_empty_list(start, name),
            METER: lambda: _is_made(start, name) and not self._is_called_between(text, start),
        }
        if not is_fresh[accumulator.kind]():
            raise NotShareable(f"{text} does not start from zero")

    def _is_reset(self, text: str) -> bool:
        for node in own_nodes(self.scope.node).of(ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr == "reset":
                statement = self.source.statement(node)
                is_its_own = ast.unparse(node.func.value) == text and place_of(statement) < place_of(self.loop)
                if is_its_own and is_passed_before(self.source, statement, self.loop):
                    return not self._is_called_between(text, statement)
        return False

    def _is_called_between(self, text: str, start: ast.stmt) -> bool:
        return any(
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and ast.unparse(node.func.value) == text
            and end_of(start) <= place_of(node) < place_of(self.loop)
            for node in own_nodes(self.scope.node)
        )

    def is_read_later(self, accumulator: Accumulator) -> bool:
        """Return whether anything reads an accumulator after the loop. Raises when it is read as a whole."""
        text = ast.unparse(accumulator.target)
        end = self.loop.end_lineno or 0
        body = own_nodes(self.scope.node)
        inside = set(walk(self.loop))
        reads = [
            node
            for node in body
            if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript))
            and node not in inside
            and isinstance(node.ctx, ast.Load)
            and ast.unparse(node) == text
        ]
        reads = [node for node in reads if node.lineno > end]
        if accumulator.kind != METER:
            return bool(reads)
        meter = accumulator.meter
        assert meter is not None
        for node in reads:
            parent = self.source.parents[node]
            if isinstance(parent, ast.Call) and parent.func is node and "__call__" in meter.readers:
                continue
            known = {*meter.sums, *meter.derived, *meter.readers, "reset"}
            is_known = isinstance(parent, ast.Attribute) and parent.attr in known
            if meter.others and not is_known and not self._is_formatted(node, known):
                raise NotShareable(f"line {node.lineno} reads more of {text} than what it adds up")
        return bool(reads)

    def _is_formatted(self, node: ast.AST, attributes: set[str]) -> bool:
        """Return whether `"{m.avg}".format(m=meter)` shows some attributes of a meter and no others."""
        keyword = self.source.parents[node]
        call = self.source.parents[keyword]
        if not isinstance(keyword, ast.keyword) or not isinstance(call, ast.Call):
            return False
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "format":
            return False
        text = call.func.value
        if not isinstance(text, ast.Constant) or not isinstance(text.value, str):
            return False
        fields = [name.split(".") for _, name, _, _ in Formatter().parse(text.value) if name]
        return all(parts[0] != keyword.arg or (len(parts) == 2 and parts[1] in attributes) for parts in fields)


def _is_made(statement: ast.stmt, name: str) -> bool:
    return isinstance(value_given(statement, name), (ast.Call, ast.Dict))


def _is_empty_list(statement: ast.stmt, name: str) -> bool:
    value = value_given(statement, name)
    return isinstance(value, ast.List) and not value.elts
