"""RF204 unused-parameters: a layer that no forward pass runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.kinds import Instance
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.model.layers import calls_of, model_of
from retrofit.training.model.modules import is_module
from retrofit.training.model.unused_layers import UnusedLayers
from retrofit.training.torch_api.modules import UNUSED_PARAMETER_OPTIONS

RULE = CATALOG["RF204"]
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
    layers = UnusedLayers(project.analysis)
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
