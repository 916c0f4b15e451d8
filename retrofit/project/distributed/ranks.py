"""What is computed from a process's rank, or from the number of processes."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property

from ..analysis import Analysis
from ..calls import CallSite, argument_for, is_method
from ..homes import part_of
from ..reach import reached_nodes
from ..scopes import FUNCTIONS, Function, Scope, own_nodes, parameters
from ..values import Display, Instance, LocalFunction, Result, Value

RANK, WORLD_SIZE = "rank", "world_size"
_RUNTIME = "retrofit.distributed"
CALLS = {
    "torch.distributed.get_rank": RANK, "torch.distributed.get_node_local_rank": RANK,
    f"{_RUNTIME}.get_rank": RANK, f"{_RUNTIME}.get_local_rank": RANK, f"{_RUNTIME}.is_main_process": RANK,
    "torch.distributed.get_world_size": WORLD_SIZE, f"{_RUNTIME}.get_world_size": WORLD_SIZE,
    "torch.cuda.device_count": WORLD_SIZE,  # of the processes on one machine
}  # fmt: skip
VARIABLES = {"RANK": RANK, "LOCAL_RANK": RANK, "SLURM_PROCID": RANK, "SLURM_LOCALID": RANK,
             "WORLD_SIZE": WORLD_SIZE, "SLURM_NTASKS": WORLD_SIZE}  # fmt: skip
# What an option, a parameter or an attribute is called, for those whose value cannot be followed.
NAMES = {"rank": RANK, "local_rank": RANK, "global_rank": RANK, "gpu": RANK, "gpu_id": RANK, "world_size": WORLD_SIZE,
         "ngpus_per_node": WORLD_SIZE, "nprocs": WORLD_SIZE}  # fmt: skip
_SPAWNING = {"torch.multiprocessing.spawn", "torch.multiprocessing.start_processes"}
_PROCESSES = {"torch.multiprocessing.Process", "multiprocessing.Process"}
MOST_STEPS = 500


class Ranks:
    """Answers what an expression is computed from."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self._known: dict[tuple[ast.AST, Scope], frozenset[str]] = {}

    def sources_of(self, node: ast.expr | None, scope: Scope) -> frozenset[str]:
        """Return which of RANK and WORLD_SIZE an expression is computed from, as far as that can be followed."""
        if node is None:
            return frozenset()
        if (node, scope) not in self._known:
            self._known[node, scope] = frozenset(self._search(node, scope).found)
        return self._known[node, scope]

    def behind(self, node: ast.expr, scope: Scope) -> list[tuple[ast.expr, Scope]]:
        """Return an expression and those that it is computed from, each with its scope."""
        return list(self._search(node, scope).seen)

    def _search(self, node: ast.expr, scope: Scope) -> _Search:
        search = _Search(self)
        search.visit(node, scope)
        return search

    def is_world_size(self, node: ast.expr, scope: Scope, depth: int = 6) -> bool:
        """Return whether an expression is the number of processes itself."""
        if depth == 0:
            return False
        if isinstance(node, ast.IfExp):
            return any(self.is_world_size(part, scope, depth - 1) for part in (node.body, node.orelse))
        if self.read_here(node, scope) == WORLD_SIZE:
            return "torch.cuda.device_count" not in self.analysis.named(node, scope)
        if isinstance(node, ast.Call) and node.args and self.analysis.called(node, scope) & {"int", "float"}:
            return self.is_world_size(node.args[0], scope, depth - 1)
        if not isinstance(node, (ast.Name, ast.Attribute, ast.Call)):
            return False
        behind = [_behind(value) for value in self.analysis.evaluate(node, scope)]
        return any(
            place is not None and self.is_world_size(*place, depth - 1) for place in behind if place != (node, scope)
        )

    def read_here(self, node: ast.AST, scope: Scope) -> str:
        """Return RANK or WORLD_SIZE if this very expression asks for it, else ""."""
        if isinstance(node, ast.Call):
            names = self.analysis.called(node, scope)
            if names & {"os.getenv", "os.environ.get"}:
                return _variable(node.args[0]) if node.args else ""
            return next((CALLS[name] for name in sorted(names) if name in CALLS), "")
        if isinstance(node, ast.Subscript) and "os.environ" in self.analysis.named(node.value, scope):
            return _variable(node.slice)
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
            name = node.attr if isinstance(node, ast.Attribute) else node.id
            if name in NAMES and not any(_behind(value) for value in self.analysis.evaluate(node, scope)):
                return NAMES[name]
        return ""

    def given_to_process(self, function: Function, name: str) -> tuple[ast.expr, Scope] | str | None:
        """Return what a new process gets for a parameter: RANK for the first one of a function that is spawned."""
        position = parameters(function).index(name)
        for site in self._spawned.get(function, []):
            is_spawn = bool(self.analysis.called(site.call, site.scope) & _SPAWNING)
            if is_spawn and position == 0:
                return RANK
            given = argument_for(site.call, ["fn", "args"] if is_spawn else [], "args")
            index = position - 1 if is_spawn else position
            if isinstance(given, (ast.Tuple, ast.List)) and index < len(given.elts):
                return given.elts[index], site.scope
        return None

    @cached_property
    def _spawned(self) -> dict[Function, list[CallSite]]:
        found: dict[Function, list[CallSite]] = defaultdict(list)
        for node, scope in reached_nodes(self.analysis):
            if not isinstance(node, ast.Call) or not self.analysis.called(node, scope) & (_SPAWNING | _PROCESSES):
                continue
            target = argument_for(node, ["fn"], "fn") or argument_for(node, [], "target")
            for value in self.analysis.evaluate(target, scope):
                if isinstance(value, LocalFunction):
                    found[value.node].append(CallSite(node, scope))
        return found

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

    def class_sources(self, class_scope: Scope) -> Iterator[str]:
        """Yield what the methods of a class ask for."""
        for scope in class_scope.walk():
            for node in own_nodes(scope.node):
                if isinstance(node, (ast.Call, ast.Subscript)):
                    yield self.read_here(node, scope)


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
            self.found |= {self.ranks.read_here(part, scope)} - {""}
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
        place = _behind(value)
        if place is not None:
            self.visit(*place)
        if isinstance(value, Instance):
            self.found |= set(self.ranks.class_sources(value.scope)) - {""}
            for argument in [*value.call.args, *(k.value for k in value.call.keywords)] if value.call else []:
                self.visit(argument, _scope_of(self.analysis, argument))

    def _visit_name(self, name: str, scope: Scope) -> None:
        owner, bindings = scope.find(name) or (scope, [])
        for binding in bindings:
            if isinstance(binding.node, ast.AugAssign):
                self.visit(binding.node.value, owner)
            elif binding.kind == "value" and not self._is_known(part_of(binding), owner):
                self.visit(part_of(binding) or binding.value, owner)  # type: ignore[arg-type]  # as in x = model(y)
            elif binding.kind == "parameter" and isinstance(owner.node, FUNCTIONS):
                given = self.ranks.given_to_process(owner.node, name) if name in parameters(owner.node) else None
                if isinstance(given, str):
                    self.found.add(given)
                elif given is not None:
                    self.visit(*given)
                elif not self._is_known(ast.Name(name, ast.Load()), scope):
                    self._visit_arguments(owner, name)

    def _is_known(self, node: ast.expr | None, scope: Scope) -> bool:
        """Return whether the values of an expression lead to all that it is computed from."""
        return any(_behind(value) or isinstance(value, Instance) for value in self.analysis.evaluate(node, scope))

    def _visit_arguments(self, function: Scope, name: str) -> None:
        assert isinstance(function.node, FUNCTIONS)
        names = parameters(function.node)[1:] if is_method(function) else parameters(function.node)
        for site in self.analysis.callers(function.node):
            argument = argument_for(site.call, names, name)
            if argument is not None:
                self.visit(argument, site.scope)


def _behind(value: Value) -> tuple[ast.expr, Scope] | None:
    """Return the expression that a value was made by."""
    if isinstance(value, Display):
        return value.node, value.scope
    return (value.call, value.scope) if isinstance(value, Result) else None


def _scope_of(analysis: Analysis, node: ast.AST) -> Scope:
    source = next(source for source in analysis.modules.sources.values() if node in source.parents)
    return analysis.scope_at(source, node)


def _variable(node: ast.expr) -> str:
    return VARIABLES.get(node.value, "") if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
