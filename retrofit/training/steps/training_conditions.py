"""Nodes that run only when a function does not train: `loader = val_loader` under a test that backward is not under."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.edits import block_of
from retrofit.analysis.flow.branches import exits_before, is_in_body
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, own_nodes

from ..loops import Frame, LoopNode, Path, exclude_each_other

EXITS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
SAME_TEST = {ast.NotEq: ast.Eq, ast.IsNot: ast.Is, ast.NotIn: ast.In}
Branch = tuple[ast.AST, list[ast.AST]]


def without_training(paths: list[Path]) -> dict[LoopNode, set[ast.AST]]:
    """Return for each loop of the training the nodes of its function that run only where no gradient is computed."""
    found: dict[LoopNode, set[ast.AST]] = {}
    for path in paths:
        for loop, frame in path.loops:
            apart = set(_apart(frame, loop))
            found[loop] = found[loop] & apart if loop in found else apart
    return found


def never_in_steps(paths: list[Path]) -> dict[LoopNode, set[ast.AST]]:
    """Return for each loop whose turns are steps the nodes that no step runs, of the functions that it calls for one.

    `run(model, data, training=True)` has a way to train with all of its data, which the loop around the call takes,
    and an evaluation under a test that is false on this way.
    """
    found: dict[LoopNode, set[ast.AST]] = {}
    for path in paths:
        loop, outer = path.loops[0]
        inner = path.frames[: path.frames.index(outer)]
        apart = {node for frame in inner for node in (*_apart(frame, loop), *_past_return(frame))}
        found[loop] = found[loop] & apart if loop in found else apart
    return found


def _apart(frame: Frame, loop: LoopNode) -> Iterator[ast.AST]:
    conditions = _Conditions(frame, loop)
    for node in own_nodes(frame.scope.node) if conditions.truths else ():  # type: ignore[arg-type]
        if isinstance(node, (ast.If, ast.IfExp)):
            truth = conditions.truth(node.test)
            if truth is not None:
                taken, other = (_parts(node.body), _parts(node.orelse))[:: 1 if truth else -1]
                yield from (inner for part in other for inner in walk(part))
                yield from _overwritten(frame.scope, node, taken, loop)


def _past_return(frame: Frame) -> Iterator[ast.AST]:
    """Yield what comes after a branch with a node that ends with `return`."""
    inner: ast.AST = frame.node
    for outer in frame.scope.source.ancestors(frame.node):
        if outer is frame.scope.node:
            break
        if isinstance(outer, ast.If):
            branch = outer.body if is_in_body(outer, inner) else outer.orelse
            block = block_of(frame.scope.source, outer)
            if branch and isinstance(branch[-1], (ast.Return, ast.Raise)):
                yield from (node for later in block[block.index(outer) + 1 :] for node in walk(later))
        inner = outer


def _parts(branch: list[ast.stmt] | ast.expr) -> list[ast.AST]:
    return [*branch] if isinstance(branch, list) else [branch]


def _overwritten(scope: Scope, node: ast.AST, taken: list[ast.AST], loop: LoopNode) -> Iterator[ast.AST]:
    """Yield the values that names have before a branch that is always taken gives them others."""
    ancestors = {scope.node, *scope.source.ancestors(loop)}
    if scope.source.parents.get(node) not in ancestors:
        return
    names = {name for part in taken for name in _names_set(part)}
    for other in own_nodes(scope.node):  # type: ignore[arg-type]
        if isinstance(other, ast.Assign) and other.lineno < node.lineno and names & set(_names_set(other)):  # type: ignore[attr-defined]
            yield other.value


def _names_set(node: ast.AST) -> Iterator[str]:
    for target in node.targets if isinstance(node, ast.Assign) else ():
        if isinstance(target, ast.Name):
            yield target.id


class _Conditions:
    """The tests on the way to a node of a function, as far as they keep their values through a loop around it."""

    def __init__(self, frame: Frame, loop: LoopNode) -> None:
        self.scope, self.loop = frame.scope, loop
        self.truths: dict[str, bool] = {}
        self.equal: list[ast.expr] = []
        inner: ast.AST = frame.node
        for outer in frame.scope.source.ancestors(frame.node):
            if isinstance(outer, (ast.If, ast.IfExp)) and inner is not outer.test:
                self._add(outer.test, is_in_body(outer, inner))
            for test in exits_before(frame.scope.source, inner, EXITS):
                self._add(test, False)
            if outer is frame.scope.node:
                break
            inner = outer

    def _add(self, test: ast.expr, truth: bool) -> None:
        test, is_same = self._plain(test)
        truth = truth is is_same
        if isinstance(test, ast.BoolOp):
            if isinstance(test.op, ast.And) is truth:
                for part in test.values:
                    self._add(part, truth)
        elif self._is_stable(test):
            self.truths[ast.dump(test)] = truth
            self.equal += [test] if truth else []

    def truth(self, test: ast.expr) -> bool | None:
        """Return whether a test holds whenever the node is reached, None where that is not known."""
        test, is_same = self._plain(test)
        if isinstance(test, ast.BoolOp):
            truths = {self.truth(part) for part in test.values}
            decisive = isinstance(test.op, ast.Or)
            found = decisive if decisive in truths else None if None in truths else not decisive
        elif any(exclude_each_other(test, other) for other in self.equal):
            found = False
        else:
            found = self.truths.get(ast.dump(test))
        return None if found is None else found is is_same

    def _plain(self, test: ast.expr) -> tuple[ast.expr, bool]:
        """Return a test without `not`, and without the name that holds it; whether it is still the same one."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            plain, is_same = self._plain(test.operand)
            return plain, not is_same
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and type(test.ops[0]) in SAME_TEST:
            op = SAME_TEST[type(test.ops[0])]()
            return ast.Compare(test.left, [op], test.comparators), False
        held = self._held(test) if isinstance(test, ast.Name) and self._is_stable(test) else None
        return (test, True) if held is None else self._plain(held)

    def _held(self, name: ast.Name) -> ast.expr | None:
        """Return the test whose outcome a name holds: `train = phase == "train"`."""
        _, bindings = self.scope.find(name.id) or (self.scope, [])
        value = bindings[0].value if bindings[0].kind == "value" and not bindings[0].path else None
        is_test = isinstance(value, (ast.Compare, ast.BoolOp)) or (
            isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not)
        )
        return value if is_test and value is not None and self._is_stable(value) else None

    def _is_stable(self, test: ast.expr) -> bool:
        """Return whether a test has one outcome from before the loop to its end: nothing sets what it reads."""
        source = self.scope.source
        for part in walk(test):
            if isinstance(part, (ast.Call, ast.NamedExpr, ast.Await, ast.Subscript)):
                return False
            if isinstance(part, ast.Name):
                _, bindings = self.scope.find(part.id) or (self.scope, [])
                nodes = [binding.node for binding in bindings]
                if len(nodes) != 1 or self.loop in (nodes[0], *source.ancestors(nodes[0])):
                    return False
            if isinstance(part, ast.Attribute) and self._is_set(part):
                return False
        return True

    def _is_set(self, attribute: ast.Attribute) -> bool:
        same = ast.unparse(attribute)
        nodes = own_nodes(self.scope.node).of(ast.Attribute)  # type: ignore[arg-type]
        return any(isinstance(node.ctx, ast.Store) and ast.unparse(node) == same for node in nodes)
