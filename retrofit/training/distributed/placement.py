"""Place reductions: every rank comes to each of them, and a value that is read several times is reduced once."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from retrofit.analysis.calls import last_name
from retrofit.analysis.edits import Edit, block_of, insert_before, is_elif, replace, surround, whole_branches
from retrofit.analysis.files.source import Source
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import FUNCTIONS, own_nodes

from .. import Project
from ..files.guards import runs_on_one
from .existing import exists_before, is_asked_for
from .ranks.rank_branches import RankBranches, rank_branches_of
from .ranks.rank_guards import rank_tests
from .reads import binding_expression, changes, is_always_evaluated, is_plain, only_computes
from .reductions import Reduction


@dataclass
class Placed:
    """The edits of each reduction that has a correct place, and the statements to which every rank must come."""

    edits: dict[Reduction, tuple[Edit, ...]] = field(default_factory=dict)
    shared: set[ast.AST] = field(default_factory=set)


@dataclass(frozen=True)
class _Spot:
    """A read, and the statement before which its value can be computed; `is_forced` where it must be."""

    reduction: Reduction
    block: list[ast.stmt]
    index: int
    is_forced: bool


def place_reductions(project: Project, reductions: Iterable[Reduction], guarded: Collection[ast.stmt]) -> Placed:
    """Decide where each of the reductions is computed; `guarded` are the statements that get a guard for one rank.

    A reduction stays in its expression where that is evaluated by all ranks and reads the value alone. Under a guard,
    under a test by which ranks part, or where the value is read again before it changes, it goes into a variable before
    the first read. A reduction that some ranks would leave out wherever it was placed has no edits.
    """
    asked = list(dict.fromkeys(reductions))
    while asked:  # a test of what is reduced parts nothing; of what could not be placed, it does
        rank_branches = rank_branches_of(project, {reduction.value for reduction in asked})
        placed = _placed(rank_branches, asked, guarded)
        left = [reduction for reduction in asked if reduction in placed.edits]
        if len(left) == len(asked):
            return placed
        asked = left
    return Placed()


def _placed(rank_branches: RankBranches, reductions: list[Reduction], guarded: Collection[ast.stmt]) -> Placed:
    placed = Placed()
    groups: dict[tuple[object, ...], list[Reduction]] = defaultdict(list)
    for reduction in reductions:
        groups[reduction.scope, reduction.function, ast.dump(reduction.value)].append(reduction)
    names: dict[Source, set[str]] = {}
    for group in groups.values():
        _Placing(rank_branches, [*group, *_reduced_already(group)], guarded, placed, names).run()
    return placed


def _reduced_already(group: list[Reduction]) -> Iterator[Reduction]:
    """Yield the calls in the same function that reduce the value of a group."""
    first = group[0]
    text = ast.dump(first.value)
    for node in own_nodes(first.scope.node):
        is_call = isinstance(node, ast.Call) and len(node.args) == 1 and ast.unparse(node.func) == first.function
        if is_call and ast.dump(node.args[0]) == text:  # type: ignore[attr-defined]
            yield Reduction(first.scope, node.args[0], first.function, node)  # type: ignore[attr-defined,arg-type]


class _Placing:
    """Places the reads of one value in one function."""

    def __init__(
        self,
        rank_branches: RankBranches,
        group: list[Reduction],
        guarded: Collection[ast.stmt],
        placed: Placed,
        names: dict[Source, set[str]],
    ) -> None:
        self.rank_branches, self.guarded, self.placed = rank_branches, guarded, placed
        self.analysis = rank_branches.project.analysis
        self.scope, self.source, self.function = group[0].scope, group[0].source, group[0].function
        self.waiting = sorted(group, key=lambda reduction: self.source.span(reduction.value))
        self.taken = names.setdefault(self.source, _names_in(self.source))

    def run(self) -> None:
        spots = [spot for reduction in self.waiting for spot in self._spots(reduction)]
        for spot in sorted(spots, key=lambda spot: self._depth(spot.block)):  # the outermost take the others in
            if spot.reduction not in self.waiting:
                continue
            first, members = self._sharing(spot)
            if spot.is_forced or len(members) > 1:
                self._put_before(spot.block[first], members)
            else:
                self._leave(spot.reduction)
        for reduction in list(self.waiting):
            if self._is_reached_by_all(reduction):
                self._leave(reduction)

    def _spots(self, reduction: Reduction) -> Iterator[_Spot]:
        """Yield where a value can be computed before its statement without being computed more often than it is read.

        Or more often, where some ranks do not come to the statement.
        """
        if self._is_left_to_some(reduction):
            return
        statement = self.source.statement(reduction.value)
        guard = self._outermost_guard(reduction)
        if guard is None:
            is_header = isinstance(statement, ast.While) or is_elif(self.source, statement)
            if not is_header and is_always_evaluated(self.source, reduction.value):
                block = block_of(self.source, statement)
                yield _Spot(reduction, block, block.index(statement), is_forced=False)
            return
        if reduction.call is not None:
            return
        guard = whole_branches(self.source, guard)
        unit = binding_expression(self.source, reduction.value)
        block = block_of(self.source, guard)
        index = self._before_neighbours(block, block.index(guard), reduction.value)
        between = self._statements_until(guard, statement)
        if unit is None or not self._is_movable(reduction, guard) or changes(between, unit):
            return
        if not exists_before(self.scope, unit, block[index]) or is_asked_for(self.scope, reduction.value, block[index]):
            return
        yield _Spot(reduction, block, index, is_forced=True)

    def _outermost_guard(self, reduction: Reduction) -> ast.stmt | None:
        """Return the outermost statement that some ranks leave out, or will, with the value in it."""
        tests = rank_tests(self.analysis, self.scope, reduction.value)
        tests += self.rank_branches.around(self.scope, reduction.value)
        found = [self.source.statement(test) for test in tests]
        found += [outer for outer in self._statements_around(reduction.value) if outer in self.guarded]
        return min(found, key=lambda statement: self.source.span(statement), default=None)

    def _is_movable(self, reduction: Reduction, guard: ast.stmt) -> bool:
        """Return whether computing a value before a guard does nothing else than computing it in its place."""
        if isinstance(guard, ast.While):
            return False
        is_own = guard is self.source.statement(reduction.value)
        return only_computes(reduction.value) or (is_own and is_always_evaluated(self.source, reduction.value))

    def _is_reached_by_all(self, reduction: Reduction) -> bool:
        return self._outermost_guard(reduction) is None and not self._is_left_to_some(reduction)

    def _is_left_to_some(self, reduction: Reduction) -> bool:
        """Return whether some ranks alone call the function, or the value is read where an error is handled."""
        body = self.scope.node.body
        start = body[0] if isinstance(self.scope.node, FUNCTIONS) and isinstance(body, list) else None
        if start is not None and runs_on_one(self.analysis, self.scope, start):
            return True
        if self.rank_branches.is_entered_by_some(self.scope):
            return True
        around = self.source.ancestors(reduction.value)
        return any(isinstance(outer, ast.ExceptHandler) for outer in _until(around, self.scope.node))

    def _before_neighbours(self, block: list[ast.stmt], index: int, value: ast.expr) -> int:
        """Return the first of the guarded statements right before one: they share a guard with it."""
        while index and block[index] in self.guarded and block[index - 1] in self.guarded:
            if changes([block[index - 1]], value):
                break
            index -= 1
        return index

    def _statements_until(self, guard: ast.stmt, statement: ast.stmt) -> list[ast.stmt]:
        """Return what runs between a guard and a statement under it, or after it where it returns early."""
        if guard is statement:
            return []
        first, last = self.source.span(guard)[0], self.source.span(statement)[0]
        inside = [part for part in walk(self.scope.node) if isinstance(part, ast.stmt) and part is not statement]
        loops = [outer for outer in self._statements_around(statement) if isinstance(outer, (ast.For, ast.While))]
        loops = [loop for loop in loops if self.source.span(loop)[0] >= first]
        simple = [part for part in inside if not hasattr(part, "body") and first <= self.source.span(part)[0] < last]
        return [*simple, *loops]

    def _sharing(self, spot: _Spot) -> tuple[int, list[Reduction]]:
        """Return where a variable would have to be set to serve the reads of one value, and these reads."""
        block, value = spot.block, spot.reduction.value
        if not is_plain(value) or self._is_changed_elsewhere(value) or self._moved_with(spot.reduction) is not value:
            others = [r for r in self.waiting if self._moved_with(r) is self._moved_with(spot.reduction)]
            return spot.index, others if spot.is_forced else [spot.reduction]
        places = [(self._index_in(block, reduction.value), reduction) for reduction in self.waiting]
        places = [(index, reduction) for index, reduction in places if index is not None]
        first = spot.index
        members = []
        for index, reduction in sorted(places, key=lambda place: abs((place[0] or 0) - spot.index)):
            low, high = min(index or 0, spot.index), max(index or 0, spot.index)
            last = [block[high]] if hasattr(block[high], "body") else []
            if reduction is not spot.reduction and (changes([*block[low:high], *last], value) or low < 0):
                continue
            if reduction is spot.reduction or self._moved_with(reduction) is reduction.value:
                members.append(reduction)
                first = min(first, self._before_neighbours(block, low, value))
        return first, sorted(members, key=lambda reduction: self.source.span(reduction.value))

    def _is_changed_elsewhere(self, value: ast.expr) -> bool:
        """Return whether another function can set the variable of a value."""
        root = next(part.id for part in walk(value) if isinstance(part, ast.Name)) if loaded_name(value) else ""
        declared = (node for node in self.source.nodes if isinstance(node, (ast.Global, ast.Nonlocal)))
        return not root or any(root in node.names for node in declared)

    def _moved_with(self, reduction: Reduction) -> ast.expr | None:
        return binding_expression(self.source, reduction.value)

    def _index_in(self, block: list[ast.stmt], node: ast.AST) -> int | None:
        """Return which statement of a block holds a node."""
        around = list(self._statements_around(node))
        return next((block.index(outer) for outer in around if outer in block), None)

    def _statements_around(self, node: ast.AST) -> Iterator[ast.stmt]:
        for outer in _until(self.source.ancestors(node), self.scope.node):
            if isinstance(outer, ast.stmt):
                yield outer

    def _depth(self, block: list[ast.stmt]) -> int:
        return sum(1 for _ in self.source.ancestors(block[0]))

    # What is written.

    def _leave(self, reduction: Reduction) -> None:
        """Reduce a value in its expression."""
        self.waiting.remove(reduction)
        if reduction.call is not None:
            return
        self.placed.edits[reduction] = tuple(surround(self.source, reduction.value, f"{self.function}(", ")"))
        self.placed.shared.update(self._statements_around(reduction.value))

    def _put_before(self, statement: ast.stmt, members: list[Reduction]) -> None:
        """Reduce a value in a variable before a statement, and read that."""
        moved = self._moved_with(members[0])
        assert moved is not None
        if moved is members[0].value:
            figures = [_figure(self.source, member.read) for member in members]
            if len({_shape(figure, member.read) for figure, member in zip(figures, members)}) > 1:
                figures = [member.read for member in members]
        else:
            figures = [moved]
        name = self._new_name(members[0].value)
        text = self._reduced(figures[0], members[:1] if len(figures) > 1 else members)
        setting = insert_before(self.source, statement, [f"{name} = {text}"])
        edits = [replace(self.source, figure, name) for figure in dict.fromkeys(figures)]
        asked = [member for member in members if member.call is None]
        for number, member in enumerate(members):
            self.waiting.remove(member)
            if member in asked:
                own = edits if member is asked[0] else edits[number : number + 1]
                self.placed.edits[member] = (setting, *own)
        self.placed.shared.add(statement)

    def _reduced(self, figure: ast.expr, members: list[Reduction]) -> str:
        """Return the text of an expression with the values in it reduced."""
        start, end = self.source.span(figure)
        text = self.source.text[start:end]
        if members[0].call is not None:
            return text
        for member in sorted(members, key=lambda member: self.source.span(member.value), reverse=True):
            first, last = (offset - start for offset in self.source.span(member.value))
            text = f"{text[:first]}{self.function}({text[first:last]}){text[last:]}"
        return text

    def _new_name(self, value: ast.expr) -> str:
        """Return a name for a variable that nothing in the file has: `global_loss` of loss and of outputs.loss."""
        base = f"global_{last_name(value).lstrip('_') or 'value'}"
        name = next(n for n in (base, *(f"{base}_{number}" for number in range(2, 999))) if n not in self.taken)
        self.taken.add(name)
        return name


def loaded_name(value: ast.expr) -> bool:
    """Return whether a value is read from a variable."""
    return any(isinstance(part, ast.Name) for part in walk(value))


def _figure(source: Source, value: ast.expr) -> ast.expr:
    """Return the number that is read: `loss.item()`, `float(loss)`; the value itself where that is not known."""
    parent = source.parents[value]
    call = source.parents.get(parent)
    if isinstance(parent, ast.Attribute) and parent.attr == "item" and isinstance(call, ast.Call) and not call.args:
        return call
    is_float = isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and parent.func.id == "float"
    return parent if is_float else value  # type: ignore[return-value]


def _shape(figure: ast.expr, value: ast.expr) -> str:
    """Return how a figure is read from a value, as `value.item()`: figures of one shape and value are the same."""
    return "" if figure is value else "float" if isinstance(figure.func, ast.Name) else "item"  # type: ignore[attr-defined]


def _until(nodes: Iterable[ast.AST], end: ast.AST) -> Iterator[ast.AST]:
    for node in nodes:
        if node is end:
            return
        yield node


def _names_in(source: Source) -> set[str]:
    """Return every name that a file uses for anything."""
    found: set[str] = set()
    for node in source.nodes:
        found |= {str(getattr(node, field, "")) for field in ("id", "arg", "name", "asname", "attr")}
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            found |= set(node.names)
    return found
