"""RF402 collective-on-some-ranks: what every process must take part in, under a test by which processes part."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from retrofit.project import Project
from retrofit.project.distributed.sides import MAIN, OTHERS, UNCLEAR, is_for_main, side_of
from retrofit.project.gradients import has_gradients
from retrofit.project.guards import ON_MAIN
from retrofit.project.layers import has_buffers
from retrofit.project.reach import reached_nodes
from retrofit.project.scopes import Scope, own_nodes
from retrofit.project.values import LocalFunction
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training.distributed.collectives import EVERY_RANK
from retrofit.training.distributed.partings import partings_of

RULE = CATALOG["RF402"]
INVALID = [
    """\
correct = torch.tensor(float(total))
if dist.get_rank() == 0:
    dist.all_reduce(correct)
    print(correct)
"""
]
VALID = [
    """\
correct = torch.tensor(float(total))
dist.all_reduce(correct)
if dist.get_rank() == 0:
    print(correct)
"""
]
DECIDE = "let all processes decide by one value, rd.on_any_rank(test) or rd.reduce_loss(mean), or move it out"
FORWARD = "a forward pass through DDP"
MOST_DEPTH = 8


def find(project: Project) -> Iterator[Finding]:
    shared = _Shared(project)
    parts: dict[tuple[Scope, str], dict[str, list[ast.Call]]] = defaultdict(lambda: defaultdict(list))
    for node, scope in reached_nodes(project.analysis) if shared.exist else ():
        if isinstance(node, ast.Call):
            for name in shared.handed_to_main(node, scope):
                parts[scope, name][MAIN].append(node)
            names = shared.names(node, scope)
            side = (side_of(project.analysis, scope, node) or (MAIN if is_for_main(scope) else "")) if names else ""
            for name in names if side else ():
                parts[scope, name][side].append(node)
    seen: set[ast.Call] = set()
    for call, scope, name in _by_samples(project, shared):
        seen.add(call)
        message = f"{name} is run by the processes whose own samples let them come to it"
        yield found(RULE, scope.source, call, message, help=DECIDE)
    for (scope, name), sides in parts.items():
        if len(sides[MAIN]) == len(sides[OTHERS]) and len(sides[UNCLEAR]) % 2 == 0:
            continue  # `if rank != 0: barrier()` before the work, `if rank == 0: barrier()` after it
        for call in (*sides[MAIN], *sides[OTHERS], *sides[UNCLEAR]):
            if call not in seen:
                seen.add(call)
                yield found(RULE, scope.source, call, f"{name} is run by some of the processes only")


def _by_samples(project: Project, shared: _Shared) -> Iterator[tuple[ast.Call, Scope, str]]:
    """Yield the collectives that a process leaves out by what is in its own batch, where no other branch has them."""
    if not shared.collectives or not project.paths:
        return
    partings = partings_of(project)
    branches: dict[tuple[ast.AST, str], list[tuple[ast.Call, Scope, bool]]] = defaultdict(list)
    for node, scope in reached_nodes(project.analysis):
        tests = partings.by_samples(scope, node) if isinstance(node, ast.Call) else []
        for name in shared.names(node, scope) - {FORWARD} if tests else ():  # type: ignore[arg-type]
            holder = scope.source.parents[tests[0]]
            is_else = isinstance(holder, ast.If) and is_in(holder.orelse, node, scope)
            branches[holder, name].append((node, scope, is_else))  # type: ignore[arg-type]
    for (_, name), calls in branches.items():
        num_else = sum(is_else for _, _, is_else in calls)
        if 2 * num_else != len(calls):
            yield from ((call, scope, name) for call, scope, _ in calls)


def is_in(block: list[ast.stmt], node: ast.AST, scope: Scope) -> bool:
    return any(outer in block for outer in (node, *scope.source.ancestors(node)))


class _Shared:
    """Finds out what calls run that every process must take part in: themselves, or in functions that they call."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.collectives = project.analysis.fact("calls for every rank", lambda: dict(_collectives(project)))
        self.exist = bool(self.collectives or project.wrapping.sites)
        self.of_function: dict[ast.AST, set[str]] = {}

    def names(self, call: ast.Call, scope: Scope, depth: int = MOST_DEPTH) -> set[str]:
        if call in self.collectives:
            is_of_a_part = any(keyword.arg == "group" for keyword in call.keywords)
            return set() if is_of_a_part else {self.collectives[call]}
        site = self.project.wrapping.wrapped(call.func, scope)
        if site is not None:
            is_shared = has_gradients(self.project.analysis, scope, call) or self._copies_buffers(site)
            return {FORWARD} if is_shared else set()
        found: set[str] = set()
        for function in self.project.analysis.functions_called(call, scope) if depth else []:
            found |= self._inside(function.scope, depth)
        return found

    def handed_to_main(self, call: ast.Call, scope: Scope) -> set[str]:
        """Return what a function takes part in that is handed to rd.on_main_process(function, ...)."""
        if not call.args or ON_MAIN not in self.project.analysis.called(call, scope):
            return set()
        values = self.project.analysis.evaluate(call.args[0], scope)
        functions = [value.scope for value in values if isinstance(value, LocalFunction)]
        return {name for function in functions for name in self._inside(function, MOST_DEPTH)}

    def _copies_buffers(self, site) -> bool:  # type: ignore[no-untyped-def]
        is_off = any(
            keyword.arg == "broadcast_buffers" and getattr(keyword.value, "value", True) is False
            for keyword in site.call.keywords
        )
        return not is_off and has_buffers(self.project.analysis, site)

    def _inside(self, scope: Scope, depth: int) -> set[str]:
        """Return what every process that calls a function takes part in there."""
        if scope.node not in self.of_function:
            self.of_function[scope.node] = set()
            for node in own_nodes(scope.node):
                if isinstance(node, ast.Call) and not is_for_main(scope):
                    names = self.names(node, scope, depth - 1)
                    if names and not side_of(self.project.analysis, scope, node):
                        self.of_function[scope.node] |= names
        return self.of_function[scope.node]


def _collectives(project: Project) -> Iterator[tuple[ast.Call, str]]:
    """Yield the calls that wait for every rank, with the name of what is called."""
    for node, scope in reached_nodes(project.analysis):
        if isinstance(node, ast.Call):
            names = sorted(EVERY_RANK & project.analysis.called(node, scope))
            if names:
                yield node, names[0].rpartition(".")[2]
