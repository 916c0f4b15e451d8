"""Other places and forms for functions and for the script's own statements."""

from __future__ import annotations

import ast

from .syntax import SCOPES, bound_in, functions, insert_after_imports, is_docstring, name


def parse_and_print(trees: dict[str, ast.Module]) -> None:
    """Another layout of the lines, without comments and docstrings."""
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and len(node.body) > 1 and is_docstring(node.body[0]):
                del node.body[0]


def reorder_functions(trees: dict[str, ast.Module]) -> None:
    """The functions of a file are in the reverse order."""
    for tree in trees.values():
        places = [
            n for n, node in enumerate(tree.body) if isinstance(node, ast.FunctionDef) and not node.decorator_list
        ]
        if len(places) < 2:
            continue
        between = tree.body[places[0] : places[-1]]
        if all(isinstance(node, ast.FunctionDef) for node in between) and not any(
            node.args.defaults for node in between if isinstance(node, ast.FunctionDef)
        ):
            reordered = [tree.body[place] for place in places[::-1]]
            for place, node in zip(places, reordered):
                tree.body[place] = node


def wrap_in_main(trees: dict[str, ast.Module]) -> None:
    """What a script does at its top level, it does in a function `run_all`, with the names global as before."""
    for file_name, tree in trees.items():
        runs = [node for node in tree.body if isinstance(node, (ast.For, ast.While, ast.If, ast.Expr, ast.With))]
        if not any(".backward(" in ast.unparse(node) or "__main__" in ast.unparse(node) for node in runs):
            continue
        kept, moved = [], []
        for node in tree.body:
            fixed = isinstance(node, (*SCOPES, ast.Import, ast.ImportFrom)) or is_docstring(node)
            (kept if fixed else moved).append(node)
        names = sorted(
            bound_in(ast.Module(body=moved, type_ignores=[])) - bound_in(ast.Module(body=kept, type_ignores=[]))
        )
        stored = sorted({node.id for part in moved for node in ast.walk(part) if _is_stored(node)} & set(names))
        if _used_at_definition(kept) & set(names):
            continue
        function = ast.parse("def run_all(): pass").body[0]
        assert isinstance(function, ast.FunctionDef)
        function.body = [*([ast.Global(names=stored)] if stored else []), *moved]
        call = ast.Expr(value=ast.Call(func=name("run_all"), args=[], keywords=[]))
        trees[file_name].body = [*kept, function, call]


def _is_stored(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)


def _used_at_definition(body: list[ast.stmt]) -> set[str]:
    """Return the names that classes, decorators and defaults read while they are defined."""
    words: set[str] = set()
    for node in body:
        if isinstance(node, ast.ClassDef):
            words |= {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}
        elif isinstance(node, ast.FunctionDef):
            parts = [*node.decorator_list, node.args]
            words |= {child.id for part in parts for child in ast.walk(part) if isinstance(child, ast.Name)}
    return words


def decorate(trees: dict[str, ast.Module]) -> None:
    """Each function of a file has a decorator that only calls it."""
    text = (
        "def with_same_call(function):\n    @functools.wraps(function)\n    def call(*args, **kwargs):\n"
        "        return function(*args, **kwargs)\n    return call"
    )
    for tree in trees.values():
        own = [node for node in tree.body if isinstance(node, ast.FunctionDef) and not node.decorator_list]
        for function in own:
            function.decorator_list = [name("with_same_call")]
        if own:
            insert_after_imports(tree, [ast.Import(names=[ast.alias(name="functools")]), *ast.parse(text).body])


def no_grad_as_decorator(trees: dict[str, ast.Module]) -> None:
    """A function whose body is `with torch.no_grad()` has the decorator instead."""
    for tree in trees.values():
        for function in functions(tree):
            body = function.body
            if len(body) == 1 and isinstance(body[0], ast.With) and len(body[0].items) == 1:
                context = body[0].items[0].context_expr
                if ast.unparse(context) == "torch.no_grad()":
                    function.decorator_list.append(context)
                    function.body = body[0].body


def zero_by_set_to_none(trees: dict[str, ast.Module]) -> None:
    """`optimizer.zero_grad()` is given its default by name."""
    for tree in trees.values():
        for node in ast.walk(tree):
            is_bare = isinstance(node, ast.Call) and not node.args and not node.keywords
            if is_bare and isinstance(node.func, ast.Attribute) and node.func.attr == "zero_grad":
                node.keywords = [ast.keyword(arg="set_to_none", value=ast.Constant(value=True))]


REWRITES = [parse_and_print, reorder_functions, wrap_in_main, decorate, no_grad_as_decorator, zero_by_set_to_none]
