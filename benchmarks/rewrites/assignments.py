"""Other ways to assign: temporaries, tuples, walrus, annotations."""

from __future__ import annotations

import ast

from .syntax import assign, assigned_name, bound_in, change_blocks, change_statements, functions, name, names_in


def _calls(node: ast.AST) -> list[ast.Call]:
    return [child for child in ast.walk(node) if isinstance(child, ast.Call)]


def name_the_arguments(trees: dict[str, ast.Module]) -> None:
    """`f(g(x))` becomes `argument = g(x); f(argument)`."""

    def change(statement: ast.stmt) -> list[ast.stmt] | None:
        if not isinstance(statement, (ast.Assign, ast.Expr)) or not isinstance(statement.value, ast.Call):
            return None
        call = statement.value
        if (
            not call.args
            or not isinstance(call.args[0], ast.Call)
            or not isinstance(call.func, (ast.Name, ast.Attribute))
        ):
            return None
        if _calls(call.func):
            return None
        word = f"argument_{statement.lineno}"
        first = assign(word, call.args[0])
        call.args[0] = name(word)
        return [first, statement]

    change_statements(trees, change)


def inline_temporaries(trees: dict[str, ast.Module]) -> None:
    """`y = f(x); z = g(y)` becomes `z = g(f(x))` where nothing else reads `y`."""
    for tree in trees.values():
        for function in functions(tree):
            if any(isinstance(node, (ast.Global, ast.Nonlocal)) for node in ast.walk(function)):
                continue
            for node in ast.walk(function):
                for block in (getattr(node, field, None) for field in ("body", "orelse")):
                    if isinstance(block, list):
                        _inline(block, function)


def _inline(block: list[ast.stmt], function: ast.FunctionDef) -> None:
    for place in range(len(block) - 1, 0, -1):
        word, after = assigned_name(block[place - 1]), block[place]
        uses = [node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == word]
        simple = isinstance(after, (ast.Assign, ast.Expr, ast.Return)) and after.value is not None
        if word is None or not simple or len(uses) != 2 or names_in(block[place - 1].value) & bound_in(after):  # type: ignore[attr-defined]
            continue
        first = min(_calls(after), key=lambda call: (call.lineno, call.col_offset), default=None)
        if first is None or len(_calls(after)) > 1 or not any(use in first.args for use in uses):
            continue
        first.args[:] = [block[place - 1].value if arg in uses else arg for arg in first.args]  # type: ignore[attr-defined]
        del block[place - 1]


def assign_in_expressions(trees: dict[str, ast.Module]) -> None:
    """`loss = f(x); loss.backward()` becomes `(loss := f(x)).backward()`."""

    def change(block: list[ast.stmt]) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        for statement in block:
            word = assigned_name(result[-1]) if result else None
            call = statement.value if isinstance(statement, ast.Expr) else None
            method = call.func if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) else None
            if word and method and isinstance(method.value, ast.Name) and method.value.id == word:
                value = result.pop().value  # type: ignore[attr-defined]
                method.value = ast.NamedExpr(target=ast.Name(id=word, ctx=ast.Store()), value=value)
            result.append(statement)
        return result

    for tree in trees.values():
        for function in functions(tree):
            change_blocks({"": ast.Module(body=[function], type_ignores=[])}, change)


def split_tuples(trees: dict[str, ast.Module]) -> None:
    """`a, b = x, y` becomes `a = x; b = y`."""

    def change(statement: ast.stmt) -> list[ast.stmt] | None:
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return None
        left, right = statement.targets[0], statement.value
        if not isinstance(left, ast.Tuple) or not isinstance(right, ast.Tuple) or len(left.elts) != len(right.elts):
            return None
        if any(isinstance(item, ast.Starred) for item in [*left.elts, *right.elts]):
            return None
        if not all(isinstance(item, ast.Name) for item in left.elts) or names_in(left) & names_in(right):
            return None
        return [ast.Assign(targets=[item], value=value) for item, value in zip(left.elts, right.elts)]

    change_statements(trees, change)


def merge_assignments(trees: dict[str, ast.Module]) -> None:
    """`a = x` and `b = y` become `a, b = x, y`."""

    def change(block: list[ast.stmt]) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        for statement in block:
            last, word = assigned_name(result[-1]) if result else None, assigned_name(statement)
            if last and word and last != word and last not in names_in(statement.value):  # type: ignore[attr-defined]
                left = ast.Tuple(elts=[ast.Name(id=w, ctx=ast.Store()) for w in (last, word)], ctx=ast.Store())
                right = ast.Tuple(elts=[result.pop().value, statement.value], ctx=ast.Load())  # type: ignore[attr-defined]
                statement = ast.Assign(targets=[left], value=right)
            result.append(statement)
        return result

    change_blocks(trees, change)


def spell_out_additions(trees: dict[str, ast.Module]) -> None:
    """`total += x` becomes `total = total + x` where the total starts as a number."""
    for tree in trees.values():
        for function in functions(tree):
            numbers = {
                assigned_name(node)
                for node in ast.walk(function)
                if isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, (int, float))
            }

            def change(statement: ast.stmt, numbers: set[str | None] = numbers) -> list[ast.stmt] | None:
                if not isinstance(statement, ast.AugAssign) or not isinstance(statement.target, ast.Name):
                    return None
                word = statement.target.id
                if word not in numbers or word in names_in(statement.value):
                    return None
                return [assign(word, ast.BinOp(left=name(word), op=statement.op, right=statement.value))]

            change_statements({"": ast.Module(body=[function], type_ignores=[])}, change)


def annotate(trees: dict[str, ast.Module]) -> None:
    """Annotate constants, parameters with a constant as their default, and what returns nothing."""

    def kind(value: ast.expr | None) -> str | None:
        if isinstance(value, ast.Constant) and isinstance(value.value, (bool, int, float, str)):
            return type(value.value).__name__
        return None

    def change(statement: ast.stmt) -> list[ast.stmt] | None:
        word = assigned_name(statement)
        type_name = kind(statement.value) if isinstance(statement, ast.Assign) else None
        if word is None or type_name is None or word in shared:
            return None
        target = ast.Name(id=word, ctx=ast.Store())
        return [ast.AnnAssign(target=target, annotation=name(type_name), value=statement.value, simple=1)]  # type: ignore[attr-defined]

    for tree in trees.values():
        nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.Global, ast.Nonlocal))]
        shared = {word for node in nodes for word in node.names}
        change_statements({"": tree}, change)
        for function in functions(tree):
            arguments = [*function.args.posonlyargs, *function.args.args][::-1]
            for argument, default in zip(arguments, function.args.defaults[::-1]):
                if kind(default):
                    argument.annotation = name(kind(default) or "")
            generator = any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in ast.walk(function))
            if not generator and not any(isinstance(n, ast.Return) and n.value for n in ast.walk(function)):
                function.returns = ast.Constant(value=None)


REWRITES = [
    name_the_arguments,
    inline_temporaries,
    assign_in_expressions,
    split_tuples,
    merge_assignments,
    spell_out_additions,
    annotate,
]
