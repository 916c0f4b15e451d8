"""Names and what binds them, per module, class and function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Union

from .files.source import Source
from .nodes import Nodes, children

Function = Union[ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
MATCHED = {"MatchAs": "name", "MatchStar": "name", "MatchMapping": "rest"}  # patterns (Python 3.10) that bind a name
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
BINDING = (
    *DEFINITIONS,
    *(ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr),
    *(ast.For, ast.AsyncFor, ast.comprehension, ast.withitem, ast.ExceptHandler),
    *(ast.Import, ast.ImportFrom),
    *(getattr(ast, name) for name in MATCHED if hasattr(ast, name)),
)


@dataclass(frozen=True)
class Binding:
    """One way in which a name gets its value.

    kind "value": from the expression `value`; "item": an element of it (for, comprehension); "enter": what a with
    statement makes of it; "parameter", "definition", "import" and "other" (except, del, match) have no expression.
    `path`: indices into the value where a tuple is taken apart, from its end after a `*rest`. `rest_of`: for `*rest`
    itself, of kind "other", the value; its `path` leads to the first entry. `dotted`: for an import, what is imported.
    """

    name: str
    node: ast.AST
    kind: str
    value: ast.expr | None = None
    path: tuple[int, ...] = ()
    rest_of: ast.expr | None = None
    dotted: str = ""
    level: int = 0  # of a relative import
    member: str = ""  # from `dotted` import `member`
    elsewhere: Scope | None = field(default=None, compare=False)  # of the statement, where the name is global
    place: tuple[int, int] = field(init=False, compare=False)  # line and column

    def __post_init__(self) -> None:
        object.__setattr__(self, "place", place_of(self.node))


def outside_comprehensions(bindings: list[Binding]) -> list[Binding]:
    """Return the bindings of a name but for those of comprehensions, which hold inside of these alone."""
    return [b for b in bindings if not (b.kind == "item" and isinstance(b.node, ast.comprehension))]


def place_of(node: ast.AST) -> tuple[int, int]:
    """Return the line and the column of a node, those of its first part where it has none of its own."""
    if isinstance(node, ast.comprehension):
        node = node.target
    elif isinstance(node, ast.withitem):
        node = node.context_expr
    return node.lineno, node.col_offset  # type: ignore[attr-defined]


def end_of(node: ast.AST) -> tuple[int, int]:
    """Return where a node ends: the next statement can begin in the same line."""
    return node.end_lineno or 0, node.end_col_offset or 0  # type: ignore[attr-defined]


@dataclass(eq=False)
class Scope:
    """A module, a class or a function (a lambda too) with the names bound in it."""

    node: ast.Module | ast.ClassDef | Function
    source: Source
    parent: Scope | None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    children: list[Scope] = field(default_factory=list)
    star_imports: list[Binding] = field(default_factory=list)
    entries: dict[str, list[tuple[ast.expr, ast.expr]]] = field(default_factory=dict)  # name[key] = value
    outer_names: dict[str, Scope] = field(default_factory=dict)  # by `global` and `nonlocal`
    live: dict[ast.Name, tuple[Scope, list[Binding]]] = field(default_factory=dict)  # see `live_bindings`

    def __repr__(self) -> str:
        return f"<Scope {getattr(self.node, 'name', 'module')} of {self.source.name}>"

    @property
    def is_function(self) -> bool:
        return isinstance(self.node, FUNCTIONS)

    @property
    def is_run_by_import(self) -> bool:
        """Whether its statements are run where the module is imported: those of a class, too, and its defaults."""
        return not self.is_function and (self.parent is None or self.parent.is_run_by_import)

    @property
    def module(self) -> Scope:
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope

    def find(self, name: str) -> tuple[Scope, list[Binding]] | None:
        """Return the scope that binds `name` as seen from here, with its bindings there."""
        scope: Scope | None = self.outer_names.get(name, self)
        while scope is not None:
            if name in scope.bindings and (scope is self or not isinstance(scope.node, ast.ClassDef)):
                return scope, scope.bindings[name]
            scope = scope.parent
        return None

    def only_value(self, name: str) -> ast.expr | None:
        """Return the expression that a name is set to here, once and by nothing else; None for other names."""
        bindings = self.bindings.get(name, [])
        is_one = len(bindings) == 1 and bindings[0].kind == "value" and not bindings[0].path
        return bindings[0].value if is_one else None

    def enclosing_class(self) -> Scope | None:
        """Return the class whose method this is, seen through nested functions."""
        scope: Scope | None = self
        while scope is not None and not isinstance(scope.node, ast.ClassDef):
            scope = scope.parent
        return scope

    def is_around(self, other: Scope) -> bool:
        """Return whether a scope is this one, or inside of it."""
        inner: Scope | None = other
        while inner is not None and inner is not self:
            inner = inner.parent
        return inner is self

    def walk(self) -> Iterator[Scope]:
        yield self
        for child in self.children:
            yield from child.walk()


def build_scopes(source: Source) -> tuple[Scope, dict[ast.AST, Scope]]:
    """Return the module's scope, and for every function, class and the module itself the scope that it opens."""
    builder = _Builder(source)
    module = builder.open(source.tree, None)
    for scope in module.walk():
        for name in list(scope.entries):
            owner, _ = scope.find(name) or (scope, [])
            if owner is not scope:
                owner.entries.setdefault(name, []).extend(scope.entries.pop(name))
    return module, builder.scopes


def parameters(function: Function) -> list[str]:
    """Return the names of a function's parameters in the order in which arguments are matched to them."""
    known = vars(function)  # many ask, so the list stays with the node
    if "parameters" not in known:
        given = function.args
        known["parameters"] = [arg.arg for arg in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return known["parameters"]


class _Builder:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.scopes: dict[ast.AST, Scope] = {}

    def open(self, node: ast.Module | ast.ClassDef | Function, parent: Scope | None) -> Scope:
        scope = Scope(node, self.source, parent)
        self.scopes[node] = scope
        if parent is not None:
            parent.children.append(scope)
        if isinstance(node, FUNCTIONS):
            self._bind_parameters(scope, node)
        found = own_nodes(node)
        for declaration in found.of(ast.Global, ast.Nonlocal):
            self._declare(scope, declaration)
        for inner in found.of(*BINDING):
            self._visit(scope, inner)
        return scope

    def _declare(self, scope: Scope, node: ast.Global | ast.Nonlocal) -> None:
        for name in node.names:
            outer: Scope | None = scope.module
            if isinstance(node, ast.Nonlocal):
                outer = scope.parent
                while outer is not None and not (outer.is_function and name in outer.bindings):
                    outer = outer.parent
            if outer is not None and outer is not scope:
                scope.outer_names[name] = outer

    def _bind_parameters(self, scope: Scope, node: Function) -> None:
        given = node.args
        for arg in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg):
            if arg is not None:
                self._bind(scope, Binding(arg.arg, arg, "parameter"))

    def _visit(self, scope: Scope, node: ast.AST) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self._bind(scope, Binding(node.name, node, "definition"))
            self.open(node, scope)
        elif isinstance(node, ast.Lambda):
            self.open(node, scope)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                self._bind_target(scope, target, node, "value", node.value)
                if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
                    scope.entries.setdefault(target.value.id, []).append((target.slice, node.value))
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
            if node.value is not None:
                self._bind_target(scope, node.target, node, "value", node.value)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
            self._bind_target(scope, node.target, node, "item", node.iter)
        elif isinstance(node, ast.withitem):
            if node.optional_vars is not None:
                self._bind_target(scope, node.optional_vars, node, "enter", node.context_expr)
        elif isinstance(node, ast.AugAssign):
            self._bind_target(scope, node.target, node, "other", None)
        elif isinstance(node, ast.ExceptHandler):
            if node.name:
                self._bind(scope, Binding(node.name, node, "other"))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            self._bind_imports(scope, node)
        elif type(node).__name__ in MATCHED and getattr(node, MATCHED[type(node).__name__]):
            self._bind(scope, Binding(getattr(node, MATCHED[type(node).__name__]), node, "other"))

    def _bind_imports(self, scope: Scope, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                dotted = alias.name if alias.asname else alias.name.split(".")[0]
                self._bind(scope, Binding(alias.asname or dotted, node, "import", dotted=dotted))
            return
        for alias in node.names:
            binding = Binding(
                alias.asname or alias.name,
                node,
                "import",
                dotted=node.module or "",
                level=node.level,
                member=alias.name,
            )
            if alias.name == "*":
                scope.star_imports.append(binding)
            else:
                self._bind(scope, binding)

    def _bind_target(
        self, scope: Scope, target: ast.expr, node: ast.AST, kind: str, value: ast.expr | None, path: tuple = ()
    ) -> None:
        if isinstance(target, ast.Name):
            self._bind(scope, Binding(target.id, node, kind, value, path))
        elif isinstance(target, (ast.Tuple, ast.List)):
            for index, part in positions_in(target):
                if not isinstance(part, ast.Starred):
                    self._bind_target(scope, part, node, kind, value, (*path, index))
                elif isinstance(part.value, ast.Name):
                    self._bind(scope, Binding(part.value.id, node, "other", None, (*path, index), rest_of=value))

    def _bind(self, scope: Scope, binding: Binding) -> None:
        owner = scope.outer_names.get(binding.name, scope)
        placed = binding if owner is scope else replace(binding, elsewhere=scope)
        owner.bindings.setdefault(binding.name, []).append(placed)


def positions_in(target: ast.Tuple | ast.List) -> Iterator[tuple[int, ast.expr]]:
    """Yield the parts of a target with their indices, which count from the end after a `*rest`."""
    is_after_rest = False
    for index, part in enumerate(target.elts):
        yield index - len(target.elts) if is_after_rest else index, part
        is_after_rest |= isinstance(part, ast.Starred)


def own_nodes(owner: ast.Module | ast.ClassDef | Function) -> Nodes:
    """Return all nodes of a scope's body in source order, without what is inside functions and classes in it.

    Their decorators, defaults and bases do belong to the scope around them.
    """
    known = vars(owner)  # many ask, so the list stays with the node
    if "own_nodes" not in known:
        known["own_nodes"] = Nodes(_own_nodes(owner))
    return known["own_nodes"]


def own_calls(owner: ast.Module | ast.ClassDef | Function) -> list[ast.Call]:
    """Return the calls among `own_nodes`."""
    return own_nodes(owner).of(ast.Call)


def _own_nodes(owner: ast.Module | ast.ClassDef | Function) -> Iterator[ast.AST]:
    waiting: list[ast.AST] = [owner.body] if isinstance(owner, ast.Lambda) else list(reversed(owner.body))
    while waiting:
        node = waiting.pop()
        yield node
        waiting += reversed(_evaluated_first(node) if isinstance(node, DEFINITIONS) else children(node))


def _evaluated_first(node: Function | ast.ClassDef) -> list[ast.expr]:
    """Return the parts of a definition that the scope around it evaluates."""
    if isinstance(node, ast.ClassDef):
        return [*node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords)]
    defaults = [*node.args.defaults, *(d for d in node.args.kw_defaults if d)]
    return defaults if isinstance(node, ast.Lambda) else [*node.decorator_list, *defaults]


def is_imported(node: ast.AST, scope: Scope) -> bool:
    """Return whether an expression is an imported name, or a part of what it names: `os`, `os.path`, `os.path.join`."""
    while isinstance(node, ast.Attribute):
        node = node.value
    _, bindings = (scope.find(node.id) if isinstance(node, ast.Name) else None) or (scope, [])
    return bool(bindings) and all(binding.kind == "import" for binding in bindings)
