"""Values computed from a process's rank, or from the number of processes."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.bindings import builder_of
from retrofit.analysis.flow.operands import inputs
from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance, Value
from retrofit.training.torch_api.distributed import ASKS_FOR_MAIN, GPU_NAMES, RANK, WORLD_SIZE
from retrofit.training.torch_api.launch import DEVICE_COUNT

from .rank_sources import asked_for, called_so, is_distributed
from .rank_values import is_world_size


class Ranks:
    """Answers what an expression is computed from."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self._known: dict[tuple[ast.AST, Scope], list[tuple[ast.expr, Scope]]] = {}
        self._of_classes: dict[Scope, frozenset[str]] = {}

    def sources_of(self, node: ast.expr | None, scope: Scope) -> frozenset[str]:
        """Return which of RANK and WORLD_SIZE an expression is computed from, as far as that can be followed."""
        places = self.origins(node, scope) if node is not None else []
        return frozenset(source for place in places for source in self._sources_at(*place))

    def origins(self, node: ast.expr, scope: Scope) -> list[tuple[ast.expr, Scope]]:
        """Return an expression and those that it is computed from, each with its scope."""
        if (node, scope) not in self._known:
            found = origins(self.analysis, [Origin(node, scope)], self._parts)
            places = [(o.node.value if isinstance(o.node, ast.AugAssign) else o.node, o.scope) for o in found]
            self._known[node, scope] = list(dict.fromkeys(places))
        return self._known[node, scope]

    def _parts(self, origin: Origin) -> Iterator[Origin]:
        """Yield what an expression is computed from, and what an attribute of an object that is not known is set to."""
        yield from inputs(self.analysis, origin)
        node, scope = origin.node, origin.scope
        if isinstance(node, ast.Attribute) and not any(map(_is_of_project, self.analysis.evaluate(node.value, scope))):
            yield from (Origin(*place) for place in self.set_attributes.get(node.attr, []))

    def _sources_at(self, node: ast.expr, scope: Scope) -> Iterator[str]:
        """Yield what an expression itself tells of the processes, or the class that it is an object of."""
        told = self.tells(node, scope)
        if told:
            yield told
        function = (scope.find(node.id) or (scope, []))[0] if isinstance(node, ast.Name) else None
        if function is not None and self.analysis.spawned.gives_rank(function, node.id):  # type: ignore[attr-defined]
            yield RANK
        for value in self.analysis.evaluate(node, scope):
            if isinstance(value, Instance):
                yield from self.class_sources(value.scope)

    def is_world_size(self, node: ast.expr, scope: Scope) -> bool:
        """Return whether an expression is the number of processes itself."""
        return is_world_size(self.analysis, node, scope)

    def tells(self, node: ast.AST, scope: Scope) -> str:
        """Return RANK or WORLD_SIZE if this very expression tells something of it, else ""."""
        found = asked_for(self.analysis, node, scope)
        if found or not isinstance(node, (ast.Name, ast.Attribute, ast.Call)):
            return found
        if isinstance(node, ast.Call):
            names = self.analysis.called(node, scope)
            if names & ASKS_FOR_MAIN:
                return RANK
            if DEVICE_COUNT in names:
                return WORLD_SIZE
        is_gpu = last_name(node) in GPU_NAMES and is_distributed(self.analysis)
        found = RANK if is_gpu else called_so(self.analysis, node)
        is_read = isinstance(node, ast.Call) or isinstance(node.ctx, ast.Load)
        is_known = found and any(builder_of(value) for value in self.analysis.evaluate(node, scope))
        return found if is_read and not is_known else ""

    @cached_property
    def set_attributes(self) -> dict[str, list[tuple[ast.expr, Scope]]]:
        """What is assigned to attributes of objects that the analysis cannot look into: args.batch_size = ..."""
        found: dict[str, list[tuple[ast.expr, Scope]]] = defaultdict(list)
        for node, scope in reached_nodes(self.analysis).of(ast.Assign, ast.AugAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Attribute):
                    found[target.attr].append((node.value, scope))
        return found

    def class_sources(self, class_scope: Scope) -> frozenset[str]:
        """Return what the methods of a class ask for. Only being the main process decides about output, not samples."""
        if class_scope not in self._of_classes:
            self._of_classes[class_scope] = frozenset(self._asked_for_in(class_scope)) - {""}
        return self._of_classes[class_scope]

    def _asked_for_in(self, class_scope: Scope) -> Iterator[str]:
        for scope in class_scope.walk():
            for node in own_nodes(scope.node):
                if isinstance(node, ast.Call) and self.analysis.called(node, scope) & ASKS_FOR_MAIN:
                    continue
                if isinstance(node, (ast.Call, ast.Subscript)):
                    yield self.tells(node, scope)


def _is_of_project(value: Value) -> bool:
    """Return whether a value is an object of the project, whose assignments to attributes are known."""
    return isinstance(value, Instance)
