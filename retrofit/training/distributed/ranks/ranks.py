"""Values computed from a process's rank, or from the number of processes."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.bindings import arguments_for, builder_of, scope_of
from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.flow.variables import part_of
from retrofit.analysis.scopes import FUNCTIONS, Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance, Value
from retrofit.training.torch_api.distributed import ASKS_FOR_MAIN, GPU_NAMES, RANK, WORLD_SIZE
from retrofit.training.torch_api.launch import DEVICE_COUNT

from .rank_sources import asked_for, called_so
from .rank_values import is_world_size

MOST_STEPS = 500


class Ranks:
    """Answers what an expression is computed from."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self._known: dict[tuple[ast.AST, Scope], _Search] = {}
        self._of_classes: dict[Scope, frozenset[str]] = {}

    def sources_of(self, node: ast.expr | None, scope: Scope) -> frozenset[str]:
        """Return which of RANK and WORLD_SIZE an expression is computed from, as far as that can be followed."""
        return frozenset() if node is None else frozenset(self._search(node, scope).found)

    def origins(self, node: ast.expr, scope: Scope) -> list[tuple[ast.expr, Scope]]:
        """Return an expression and those that it is computed from, each with its scope."""
        return list(self._search(node, scope).seen)

    def _search(self, node: ast.expr, scope: Scope) -> _Search:
        if (node, scope) not in self._known:
            search = _Search(self)
            search.visit(node, scope)
            self._known[node, scope] = search
        return self._known[node, scope]

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
        found = RANK if last_name(node) in GPU_NAMES else called_so(node)
        is_read = isinstance(node, ast.Call) or isinstance(node.ctx, ast.Load)
        is_known = found and any(builder_of(value) for value in self.analysis.evaluate(node, scope))
        return found if is_read and not is_known else ""

    @cached_property
    def set_attributes(self) -> dict[str, list[tuple[ast.expr, Scope]]]:
        """What is assigned to attributes of objects that the analysis cannot look into: args.batch_size = ..."""
        found: dict[str, list[tuple[ast.expr, Scope]]] = defaultdict(list)
        for node, scope in reached_nodes(self.analysis):
            if isinstance(node, (ast.Assign, ast.AugAssign)):
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


class _Search:
    """Follows an expression to everything that it is computed from."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.analysis = ranks.analysis
        self.found: set[str] = set()
        self.seen: dict[tuple[ast.expr, Scope], None] = {}  # in the order in which they were come to

    def visit(self, node: ast.expr, scope: Scope) -> None:
        if (node, scope) in self.seen or len(self.seen) > MOST_STEPS:
            return
        self.seen[node, scope] = None
        for part in ast.walk(node):
            self.found |= {self.ranks.tells(part, scope)} - {""}
            if isinstance(part, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
                for value in self.analysis.evaluate(part, scope):
                    self._visit_value(value)
            if isinstance(part, ast.Name):
                self._visit_name(part.id, scope)
            elif isinstance(part, ast.Attribute) and not self._is_own(part, scope):
                for given, where in self.ranks.set_attributes.get(part.attr, []):
                    self.visit(given, where)

    def _is_own(self, node: ast.Attribute, scope: Scope) -> bool:
        """Return whether this is an attribute of the project's own object, whose assignments are values of it."""
        return any(isinstance(value, Instance) for value in self.analysis.evaluate(node.value, scope))

    def _visit_value(self, value: Value) -> None:
        place = builder_of(value)
        if place is not None:
            self.visit(*place)
        if isinstance(value, Instance):
            self.found |= self.ranks.class_sources(value.scope)
            for argument in [*value.call.args, *(k.value for k in value.call.keywords)] if value.call else []:
                self.visit(argument, scope_of(self.analysis, argument))

    def _visit_name(self, name: str, scope: Scope) -> None:
        owner, bindings = scope.find(name) or (scope, [])
        for binding in bindings:
            if isinstance(binding.node, ast.AugAssign):
                self.visit(binding.node.value, owner)
            elif binding.kind == "value" and not self._is_known(part_of(binding), owner):
                self.visit(part_of(binding) or binding.value, owner)  # type: ignore[arg-type]  # as in x = model(y)
            elif binding.kind == "parameter" and isinstance(owner.node, FUNCTIONS):
                given = self.analysis.spawned.given(owner, name)
                if self.analysis.spawned.gives_rank(owner, name):
                    self.found.add(RANK)
                elif given is not None:
                    self.visit(*given)
                elif not self._is_known(ast.Name(name, ast.Load()), scope):
                    self._visit_arguments(owner, name)

    def _is_known(self, node: ast.expr | None, scope: Scope) -> bool:
        """Return whether the values of an expression lead to all that it is computed from."""
        return any(builder_of(value) or isinstance(value, Instance) for value in self.analysis.evaluate(node, scope))

    def _visit_arguments(self, function: Scope, name: str) -> None:
        for argument, where in arguments_for(self.analysis, name, function):
            if argument is not None:
                self.visit(argument, where)
