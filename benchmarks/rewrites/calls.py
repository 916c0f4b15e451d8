"""Other ways to give a call its arguments."""

from __future__ import annotations

import ast

from .syntax import Function, assign, bound_in, change_statements, insert_after_imports, name

FIRST = {"DataLoader": ["dataset", "batch_size", "shuffle"], "SGD": ["params", "lr"], "Adam": ["params", "lr"]}
FACTORIES = ("DataLoader", "SGD", "Adam", "AdamW", "CrossEntropyLoss", "StepLR", "Conv2d", "BatchNorm2d", "Linear")


def _calls(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def _word(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


def give_by_name(trees: dict[str, ast.Module]) -> None:
    """`DataLoader(data, 8)` becomes `DataLoader(dataset=data, batch_size=8)`."""
    for tree in trees.values():
        for call in _calls(tree):
            names = FIRST.get(_word(call), [])
            if call.args and len(call.args) <= len(names) and not any(isinstance(a, ast.Starred) for a in call.args):
                given = [ast.keyword(arg=word, value=value) for word, value in zip(names, call.args)]
                call.args, call.keywords = [], [*given, *call.keywords]


def reverse_keywords(trees: dict[str, ast.Module]) -> None:
    for tree in trees.values():
        for call in _calls(tree):
            if all(keyword.arg and not _calls(keyword.value) for keyword in call.keywords):
                call.keywords.reverse()


def give_by_dict(trees: dict[str, ast.Module]) -> None:
    """`x = DataLoader(data, batch_size=8)` becomes `options = dict(batch_size=8); x = DataLoader(data, **options)`."""

    def change(statement: ast.stmt) -> list[ast.stmt] | None:
        call = statement.value if isinstance(statement, ast.Assign) else None
        if not isinstance(call, ast.Call) or _word(call) not in FACTORIES or not call.keywords:
            return None
        if any(keyword.arg is None for keyword in call.keywords):
            return None
        word = f"options_{statement.lineno}"
        options = assign(word, ast.Call(func=name("dict"), args=[], keywords=call.keywords))
        call.keywords = [ast.keyword(arg=None, value=name(word))]
        return [options, statement]

    change_statements(trees, change)


def call_by_helper(trees: dict[str, ast.Module]) -> None:
    """`DataLoader(...)` becomes `new_DataLoader(...)`, a function that passes on all that it is given."""
    for tree in trees.values():
        imported = {word for node in tree.body if isinstance(node, ast.ImportFrom) for word in bound_in(node)}
        helpers: dict[str, ast.FunctionDef] = {}
        for call in _calls(tree):
            if isinstance(call.func, ast.Name) and call.func.id in imported and call.func.id in FACTORIES:
                word = call.func.id
                text = f"def new_{word}(*args, **kwargs):\n    return {word}(*args, **kwargs)"
                function = ast.parse(text).body[0]
                assert isinstance(function, Function)
                helpers.setdefault(word, function)  # type: ignore[arg-type]
                call.func = name(f"new_{word}")
        insert_after_imports(tree, list(helpers.values()))


def call_through_partial(trees: dict[str, ast.Module]) -> None:
    """`DataLoader(data, batch_size=8)` becomes `functools.partial(DataLoader, data)(batch_size=8)`."""
    for tree in trees.values():
        changed = False
        for call in _calls(tree):
            if _word(call) in ("DataLoader", "CrossEntropyLoss") and isinstance(call.func, (ast.Name, ast.Attribute)):
                function = ast.Attribute(value=name("functools"), attr="partial", ctx=ast.Load())
                call.func = ast.Call(func=function, args=[call.func, *call.args], keywords=[])
                call.args, changed = [], True
        if changed:
            insert_after_imports(tree, [ast.Import(names=[ast.alias(name="functools")])])


REWRITES = [give_by_name, reverse_keywords, give_by_dict, call_by_helper, call_through_partial]
