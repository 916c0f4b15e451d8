"""RF204 unused-parameters: a layer that no forward pass runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from retrofit.analysis.calls import is_method
from retrofit.analysis.scopes import Scope, own_nodes, parameters
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance, Result, Value
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.model.layers import calls_of, model_of
from retrofit.training.model.modules import is_module
from retrofit.training.torch_api.modules import (
    MODULES,
    NAMELESS_ACCESS,
    PARAMETERS,
    RUNS_NOTHING,
    UNUSED_PARAMETER_OPTIONS,
    WITH_PARAMETERS,
)

RULE = CATALOG["RF204"]
ITERATING = MODULES | PARAMETERS
INVALID = [
    """\
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.projection = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x)


model = DDP(Tagger())
""",
    """\
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)  # RF204

    def forward(self, x):
        return self.head(self.layer(x))


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()

    def forward(self, x):
        return self.encoder.layer(x)


model = DDP(Tagger())
""",
]
VALID = [
    """\
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x)


model = DDP(Tagger())
""",
    # DDP is told to look for them
    """\
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.projection = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x)


model = DDP(Tagger(), find_unused_parameters=True)
""",
    # layers that are read by their names, given as texts
    """\
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 2)

    def forward(self, x):
        for name in ("first", "second"):
            x = getattr(self, name)(x)
        return x


model = DDP(Tagger())
""",
    # no parameters, so nothing to be averaged
    """\
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return self.layer(x)


model = DDP(Tagger())
""",
]


def find(project: Project) -> Iterator[Finding]:
    seen: set[ast.AST] = set()
    layers = _UnusedLayers(project.analysis)
    classes = {c: None for node, scope in _models(project) for c in _classes(project, node, scope)}
    for class_scope in classes:
        for value in layers.of(class_scope):
            if value not in seen:
                seen.add(value)
                message = f"no forward pass of {class_scope.node.name} uses this layer"  # type: ignore[union-attr]
                yield found(RULE, class_scope.source, value, message)


def _models(project: Project) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield the models that are wrapped without find_unused_parameters, and not by the runtime."""
    for site in project.distribution.wraps:
        if any(name.startswith("retrofit.") for name in site.names):
            continue
        given = {keyword.arg: keyword.value for keyword in site.call.keywords}
        off = all(getattr(given[name], "value", True) is False for name in UNUSED_PARAMETER_OPTIONS & set(given))
        model = model_of(site)
        if off and None not in given and model is not None:
            yield model, site.scope


def _classes(project: Project, node: ast.expr, scope: Scope) -> list[Scope]:
    """Return the project's classes that a model and its layers are of."""
    values = set(project.analysis.evaluate(node, scope))
    for call, where in calls_of(project.analysis, node, scope):
        values |= project.analysis.evaluate(call, where)
    instances = [value for value in values if isinstance(value, Instance) and is_module(project.analysis, value)]
    return sorted({value.scope for value in instances}, key=lambda found: found.source.place(found.node))


class _UnusedLayers:
    """Answers for the classes of one project; what concerns all its files is looked up once."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis

    def of(self, class_scope: Scope) -> Iterator[ast.expr]:
        """Yield the expressions that make layers which no code reads, but for setting their first weights.

        Nothing where layers can be reached without their names, or where other classes are derived from this one.
        """
        analysis = self.analysis
        if self._reaches_unnamed or analysis.classes.derived(class_scope) or self._is_open(class_scope):
            return
        read = self._names_read(class_scope)
        for owner in analysis.classes.mro(class_scope):
            for name, placed in analysis.classes.attributes_of(owner).items():
                values = [(binding.value, scope) for binding, scope in placed if binding.kind == "value"]
                if name in read or len(values) != 1 or placed[0][0].path:
                    continue
                value, scope = values[0]
                is_init = getattr(scope.node, "name", "") == "__init__"
                if is_init and any(_has_parameters(analysis, v) for v in analysis.evaluate(value, scope)):
                    assert value is not None
                    yield value

    def _is_open(self, class_scope: Scope) -> bool:
        """Return whether forward may use layers without their names, or the bases of a class cannot be seen."""
        classes = self.analysis.classes
        if not classes.bases(class_scope) <= {"torch.nn.Module", "torch.nn.modules.Module", "object"}:
            return True
        methods = [method for owner in classes.mro(class_scope) for method in owner.children]
        forwards = [method for method in methods if getattr(method.node, "name", "") == "forward"]
        return any(_iterates(node) for method in forwards for node in own_nodes(method.node))

    @cached_property
    def _reaches_unnamed(self) -> bool:
        return any(_reaches_unnamed(node) for node in self._nodes())

    def _names_read(self, class_scope: Scope) -> set[str]:
        """Return the names of attributes of a class that are read anywhere, and the texts that may be such names.

        `nn.init.zeros_(self.name.weight)` alone, which sets weights, is not a read; `self.name` in a class of its own
        kind is none either, nor in the forward of this class where only its layers are used: `self.net.layer1(x)`.
        """
        owners = self.analysis.classes.mro(class_scope)
        is_run = self._runs_forward(class_scope)
        found = set(self._texts)
        for node, method, owner in self._attributes_read:
            is_own = isinstance(node.value, ast.Name) and node.value.id == _receiver(method)
            if is_own and owner not in owners:
                continue
            if not is_run and owner is class_scope and getattr(method.node, "name", "") == "forward":  # type: ignore[union-attr]
                continue
            found.add(node.attr)
        return found

    def _runs_forward(self, class_scope: Scope) -> bool:
        """Return whether an object of a class may be called: all that is known to be done with it is to read layers."""
        uses = [use for use in self._objects_used if use[0] is class_scope]
        return not uses or not all(is_layer_read for _, is_layer_read in uses)

    @cached_property
    def _objects_used(self) -> list[tuple[Scope, bool]]:
        """Return (class, is a layer of it read?) for every place in which an object of a class is used.

        To assign or to return it is none.
        """
        analysis, found = self.analysis, []
        for scope in analysis.scopes():
            for node in own_nodes(scope.node).of(ast.Name, ast.Attribute, ast.Call):
                parent = scope.source.parents.get(node)
                if isinstance(parent, (ast.Assign, ast.AnnAssign, ast.Return)):
                    continue
                for value in analysis.evaluate(node, scope):
                    if isinstance(value, Instance) and not _is_receiver(node, scope):
                        of_layer = isinstance(parent, ast.Attribute) and _is_layer(analysis, value.scope, parent.attr)
                        found.append((value.scope, of_layer))
        return found

    @cached_property
    def _attributes_read(self) -> list[tuple[ast.Attribute, Scope | None, Scope | None]]:
        """Return every attribute that is read, with the method and the class around it."""
        found: list[tuple[ast.Attribute, Scope | None, Scope | None]] = []
        for scope in self.analysis.scopes():
            method = scope
            while method.parent is not None and not isinstance(method.parent.node, ast.ClassDef):
                method = method.parent
            for node in own_nodes(scope.node).of(ast.Attribute):
                if isinstance(node.ctx, ast.Load):
                    statement = scope.source.statement(node)
                    if not (isinstance(statement, ast.Expr) and _sets_weights(statement.value)):
                        found.append((node, method if method.parent else None, method.parent))
        return found

    @cached_property
    def _texts(self) -> set[str]:
        texts = (node.value for node in self._nodes() if isinstance(node, ast.Constant) and isinstance(node.value, str))
        return {part for text in texts for part in text.split(".")}

    def _nodes(self) -> Iterator[ast.AST]:
        return (node for source in self.analysis.modules.sources.values() for node in source.nodes)


def _receiver(method: Scope | None) -> str:
    names = parameters(method.node) if method is not None and is_method(method) else []  # type: ignore[arg-type]
    return names[0] if names else ""


def _is_receiver(node: ast.expr, scope: Scope) -> bool:
    """Return whether this is the `self` of a method."""
    method = scope
    while method.parent is not None and not isinstance(method.parent.node, ast.ClassDef):
        method = method.parent
    return isinstance(node, ast.Name) and node.id == _receiver(method)


def _is_layer(analysis: Analysis, class_scope: Scope, name: str) -> bool:
    """Return whether `name` is a layer that a class makes, or a method of torch that runs none."""
    layers = {name for owner in analysis.classes.mro(class_scope) for name in analysis.classes.attributes_of(owner)}
    return name in layers or name in RUNS_NOTHING


def _reaches_unnamed(node: ast.AST) -> bool:
    """Return whether this may reach any attribute: `model.children()`, `getattr(self, name)`."""
    if isinstance(node, ast.Attribute):
        return node.attr in NAMELESS_ACCESS
    if not isinstance(node, ast.Call) or getattr(node.func, "id", "") not in ("getattr", "eval"):
        return False
    return len(node.args) < 2 or not isinstance(node.args[1], ast.Constant)


def _iterates(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in ITERATING


def _sets_weights(node: ast.expr) -> bool:
    """Return whether this is a call like `init.xavier_uniform_(layer.weight)` or `layer.bias.data.zero_()`."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_")


def _has_parameters(analysis: Analysis, value: Value) -> bool:
    if isinstance(value, Result):
        module, _, name = value.builder.rpartition(".")
        return module.startswith("torch.nn") and name.startswith(WITH_PARAMETERS)
    if not is_module(analysis, value):
        return False
    owners = analysis.classes.mro(value.scope)  # type: ignore[union-attr]
    placed = [pair for owner in owners for pairs in analysis.classes.attributes_of(owner).values() for pair in pairs]
    return any(
        isinstance(part, Result) and _has_parameters(analysis, part)
        for binding, scope in placed
        for part in analysis.evaluate(binding.value, scope)
    )
