"""Other ways to write texts, conditions, comprehensions and lambdas."""

from __future__ import annotations

import ast

from .syntax import assign, assigned_name, bound_in, change_blocks, change_statements, name, names_in


class _Formatted(ast.NodeTransformer):
    """f-strings as calls of str.format."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        pattern, values = "", []
        for part in node.values:
            if isinstance(part, ast.Constant):
                pattern += str(part.value).replace("{", "{{").replace("}", "}}")
                continue
            assert isinstance(part, ast.FormattedValue)
            specification = part.format_spec
            fixed = [v.value for v in specification.values if isinstance(v, ast.Constant)] if specification else []  # type: ignore[attr-defined]
            if specification and len(fixed) != len(specification.values):  # type: ignore[attr-defined]
                return node
            pattern += "{" + (f"!{chr(part.conversion)}" if part.conversion > 0 else "")
            pattern += (f":{fixed[0]}" if fixed else "") + "}"
            values.append(part.value)
        function = ast.Attribute(value=ast.Constant(value=pattern), attr="format", ctx=ast.Load())
        return ast.Call(func=function, args=values, keywords=[]) if values else node


def format_by_method(trees: dict[str, ast.Module]) -> None:
    """f"{x:.3f}" becomes "{:.3f}".format(x)."""
    for tree in trees.values():
        _Formatted().visit(tree)


class _FStrings(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        function = node.func
        if not isinstance(function, ast.Attribute) or function.attr != "format" or node.keywords:
            return node
        text = function.value.value if isinstance(function.value, ast.Constant) else None
        if not isinstance(text, str) or text.count("{}") != len(node.args) or text.count("{") != len(node.args):
            return node
        if any(isinstance(arg, (ast.Starred, ast.Constant, ast.JoinedStr)) for arg in node.args):
            return node
        parts: list[ast.expr] = []
        for literal, value in zip(text.split("{}"), [*node.args, None]):
            parts += [ast.Constant(value=literal)] if literal else []
            parts += [ast.FormattedValue(value=value, conversion=-1)] if value else []
        return ast.JoinedStr(values=parts)


def format_by_f_string(trees: dict[str, ast.Module]) -> None:
    """ "{}".format(x) becomes f"{x}"."""
    for tree in trees.values():
        _FStrings().visit(tree)


def choose_by_if(trees: dict[str, ast.Module]) -> None:
    """`x = a if c else b` becomes `if c: x = a`, `else: x = b`."""

    def change(statement: ast.stmt) -> list[ast.stmt] | None:
        word = assigned_name(statement)
        value = statement.value if isinstance(statement, ast.Assign) else None
        if word is None or not isinstance(value, ast.IfExp):
            return None
        return [ast.If(test=value.test, body=[assign(word, value.body)], orelse=[assign(word, value.orelse)])]

    change_statements(trees, change)


def choose_by_expression(trees: dict[str, ast.Module]) -> None:
    """`if c: x = a`, `else: x = b` becomes `x = a if c else b`."""

    def change(statement: ast.stmt) -> list[ast.stmt] | None:
        if not isinstance(statement, ast.If) or len(statement.body) != 1 or len(statement.orelse) != 1:
            return None
        words = {assigned_name(statement.body[0]), assigned_name(statement.orelse[0])}
        if len(words) != 1 or None in words:
            return None
        first, second = statement.body[0].value, statement.orelse[0].value  # type: ignore[attr-defined]
        return [assign(str(words.pop()), ast.IfExp(test=statement.test, body=first, orelse=second))]

    change_statements(trees, change)


def loop_for_comprehension(trees: dict[str, ast.Module]) -> None:
    """`x = [f(a) for a in b]` becomes a loop that appends."""

    def change(statement: ast.stmt) -> list[ast.stmt] | None:
        word = assigned_name(statement)
        value = statement.value if isinstance(statement, ast.Assign) else None
        if word is None or not isinstance(value, ast.ListComp) or len(value.generators) != 1:
            return None
        part = value.generators[0]
        if word in names_in(value) or any(isinstance(node, ast.Lambda) for node in ast.walk(value)):
            return None
        fresh = {old: f"{old}_{word}" for old in bound_in(part.target)}
        for node in ast.walk(value):
            if isinstance(node, ast.Name) and node.id in fresh:
                node.id = fresh[node.id]
        append = ast.Attribute(value=name(word), attr="append", ctx=ast.Load())
        body: list[ast.stmt] = [ast.Expr(value=ast.Call(func=append, args=[value.elt], keywords=[]))]
        for test in part.ifs[::-1]:
            body = [ast.If(test=test, body=body, orelse=[])]
        loop = ast.For(target=part.target, iter=part.iter, body=body, orelse=[])
        return [assign(word, ast.List(elts=[], ctx=ast.Load())), loop]

    for tree in trees.values():  # not in classes, whose scope a loop would leave its variable in
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.FunctionDef)):
                own = [child for child in node.body if not isinstance(child, (ast.ClassDef, ast.FunctionDef))]
                change_statements({"": ast.Module(body=own, type_ignores=[])}, change)
                node.body[:] = [new for child in node.body for new in (change(child) or [child])]


def comprehension_for_loop(trees: dict[str, ast.Module]) -> None:
    """A loop that only appends to a list, right after it is made empty, becomes a comprehension."""

    def change(block: list[ast.stmt]) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        for statement in block:
            word = assigned_name(result[-1]) if result else None
            value = result[-1].value if word else None  # type: ignore[attr-defined]
            if word and isinstance(value, ast.List) and not value.elts and (call := _only_append(statement, word)):
                assert isinstance(statement, ast.For)
                part = ast.comprehension(target=statement.target, iter=statement.iter, ifs=[], is_async=0)
                result[-1] = assign(word, ast.ListComp(elt=call.args[0], generators=[part]))
            else:
                result.append(statement)
        return result

    change_blocks(trees, change)


def _only_append(statement: ast.stmt, word: str) -> ast.Call | None:
    if not isinstance(statement, ast.For) or len(statement.body) != 1 or statement.orelse:
        return None
    call = statement.body[0].value if isinstance(statement.body[0], ast.Expr) else None
    if isinstance(call, ast.Call) and len(call.args) == 1 and ast.unparse(call.func) == f"{word}.append":
        return call
    return None


def def_for_lambda(trees: dict[str, ast.Module]) -> None:
    """`f = lambda x: y` becomes a def."""

    def change(statement: ast.stmt) -> list[ast.stmt] | None:
        word = assigned_name(statement)
        value = statement.value if isinstance(statement, ast.Assign) else None
        if word is None or not isinstance(value, ast.Lambda):
            return None
        body: list[ast.stmt] = [ast.Return(value=value.body)]
        function = ast.parse(f"def {word}(): pass").body[0]
        assert isinstance(function, ast.FunctionDef)
        function.args, function.body = value.args, body
        return [function]

    change_statements(trees, change)


REWRITES = [
    format_by_method,
    format_by_f_string,
    choose_by_if,
    choose_by_expression,
    loop_for_comprehension,
    comprehension_for_loop,
    def_for_lambda,
]
