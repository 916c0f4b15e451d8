"""Other ways to write loops and branches."""

from __future__ import annotations

import ast

from .syntax import (
    assign,
    bound_in,
    change_statements,
    functions,
    insert_after_imports,
    is_docstring,
    name,
    names_in,
    owns,
    target,
)


def count_by_hand(trees: dict[str, ast.Module]) -> None:
    """`for i, x in enumerate(y)` becomes a counter that the loop adds to."""

    def change(statement: ast.stmt) -> list[ast.stmt] | None:
        if not isinstance(statement, ast.For) or not isinstance(statement.target, ast.Tuple):
            return None
        call = statement.iter
        if (
            not isinstance(call, ast.Call)
            or ast.unparse(call.func) != "enumerate"
            or len(call.args) != 1
            or call.keywords
        ):
            return None
        if len(statement.target.elts) != 2 or not isinstance(statement.target.elts[0], ast.Name):
            return None
        word = statement.target.elts[0].id
        add = ast.AugAssign(target=target(word), op=ast.Add(), value=ast.Constant(value=1))
        statement.target, statement.iter = statement.target.elts[1], call.args[0]
        statement.body.insert(0, add)
        start = ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1))
        return [assign(word, start), statement]

    change_statements(trees, change)


def while_for_range(trees: dict[str, ast.Module]) -> None:
    """`for i in range(n)` becomes a while loop with a counter."""

    def change(statement: ast.stmt) -> list[ast.stmt] | None:
        if not isinstance(statement, ast.For) or not isinstance(statement.target, ast.Name) or statement.orelse:
            return None
        call, word = statement.iter, statement.target.id
        if not isinstance(call, ast.Call) or ast.unparse(call.func) != "range" or len(call.args) > 2 or call.keywords:
            return None
        if any(owns(child, (ast.Continue,)) for child in statement.body) or word in after.get(statement, set()):
            return None
        if not isinstance(call.args[-1], (ast.Constant, ast.Name, ast.Attribute)):
            return None
        if any(names_in(call.args[-1]) & bound_in(child) for child in statement.body):
            return None
        start = call.args[0] if len(call.args) == 2 else ast.Constant(value=0)
        add = ast.AugAssign(target=target(word), op=ast.Add(), value=ast.Constant(value=1))
        test = ast.Compare(left=name(word), ops=[ast.Lt()], comparators=[call.args[-1]])
        return [assign(word, start), ast.While(test=test, body=[*statement.body, add], orelse=[])]

    for tree in trees.values():
        after = {loop: _names_outside(tree, loop) for loop in ast.walk(tree) if isinstance(loop, ast.For)}
        change_statements({"": tree}, change)


def _names_outside(tree: ast.Module, loop: ast.For) -> set[str]:
    inside = set(ast.walk(loop))
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node not in inside}


def invert_conditions(trees: dict[str, ast.Module]) -> None:
    """`if a: x`, `else: y` becomes `if not a: y`, `else: x`."""

    def change(statement: ast.stmt) -> list[ast.stmt] | None:
        if not isinstance(statement, ast.If) or not statement.orelse or isinstance(statement.orelse[0], ast.If):
            return None
        if isinstance(statement.test, ast.Compare) and "__name__" in ast.unparse(statement.test):
            return None
        statement.test = ast.UnaryOp(op=ast.Not(), operand=statement.test)
        statement.body, statement.orelse = statement.orelse, statement.body
        return [statement]

    change_statements(trees, change)


def return_early(trees: dict[str, ast.Module]) -> None:
    """A function that ends with `if a: x` returns before it where `a` is false."""
    for tree in trees.values():
        for function in functions(tree):
            last = function.body[-1]
            if isinstance(last, ast.If) and not last.orelse:
                guard = ast.If(
                    test=ast.UnaryOp(op=ast.Not(), operand=last.test), body=[ast.Return(value=None)], orelse=[]
                )
                function.body[-1:] = [guard, *last.body]


def match_for_elif(trees: dict[str, ast.Module]) -> None:
    """`if x == 'a'`, `elif x == 'b'` becomes a match statement."""

    def change(statement: ast.stmt) -> list[ast.stmt] | None:
        cases, subject, rest = [], "", [statement]
        while len(rest) == 1 and isinstance(rest[0], ast.If):
            test = rest[0].test
            if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq):
                break
            if not isinstance(test.comparators[0], ast.Constant) or not isinstance(test.comparators[0].value, str):
                break
            if ast.unparse(test.left) in ("__name__", "") or subject not in ("", ast.unparse(test.left)):
                break
            subject = ast.unparse(test.left)
            pattern = ast.MatchValue(value=test.comparators[0])
            cases.append(ast.match_case(pattern=pattern, body=rest[0].body))
            rest = rest[0].orelse
        if not cases:
            return None
        if rest:
            cases.append(ast.match_case(pattern=ast.MatchAs(), body=rest))
        return [ast.Match(subject=ast.parse(subject, mode="eval").body, cases=cases)]

    change_statements(trees, change)


def nest_with(trees: dict[str, ast.Module]) -> None:
    """Each loop is in a `with` that does nothing."""

    def change(statement: ast.stmt) -> list[ast.stmt] | None:
        if not isinstance(statement, ast.For):
            return None
        context = ast.parse("contextlib.nullcontext()", mode="eval").body
        return [ast.With(items=[ast.withitem(context_expr=context)], body=[statement])]

    for tree in trees.values():
        if any(isinstance(node, ast.For) for node in ast.walk(tree)):
            change_statements({"": tree}, change)
            insert_after_imports(tree, [ast.Import(names=[ast.alias(name="contextlib")])])


def try_finally(trees: dict[str, ast.Module]) -> None:
    """The body of each function is in `try ... finally`."""
    for tree in trees.values():
        for function in functions(tree):
            start = 1 if is_docstring(function.body[0]) else 0
            shared = [node for node in function.body if isinstance(node, (ast.Global, ast.Nonlocal))]
            body = [node for node in function.body[start:] if node not in shared]
            if body:
                block = ast.Try(body=body, handlers=[], orelse=[], finalbody=[ast.Pass()])
                function.body[start:] = [*shared, block]


def iterate_by_generator(trees: dict[str, ast.Module]) -> None:
    """`for x in y` becomes `for x in items_of(y)`, a generator function that yields each, where the loop trains."""
    for tree in trees.values():
        changed = False
        for loop in ast.walk(tree):
            if isinstance(loop, ast.For) and ".backward(" in ast.unparse(loop) and not _counts(loop.iter):
                loop.iter = ast.Call(func=name("items_of"), args=[loop.iter], keywords=[])
                changed = True
        if changed:
            text = "def items_of(source):\n    for item in source:\n        yield item"
            insert_after_imports(tree, ast.parse(text).body)


def _counts(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ("range", "count", "itertools.count")


REWRITES = [
    count_by_hand,
    while_for_range,
    invert_conditions,
    return_early,
    match_for_elif,
    nest_with,
    try_finally,
    iterate_by_generator,
]
