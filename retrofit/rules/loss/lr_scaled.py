"""RF304 lr-scaled: the learning rate grows with the processes although the global batch does not."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.data.loaders import TRAIN
from retrofit.training.data.shards import builders_of, places_given
from retrofit.training.optimizer.rates import rates_of
from retrofit.training.torch_api.runtime import LR_SCALING

RULE = CATALOG["RF304"]
INVALID = [
    """\
loader = rd.distribute_loader(DataLoader(dataset, 64 // rd.get_world_size(), shuffle=True))
model = rd.distribute_model(Net())
optimizer = optim.SGD(model.parameters(), lr=0.1 * rd.get_world_size())
""",
    """\
batch_size, rate = 64, 0.1
batch_size //= rd.get_world_size()
loader = rd.distribute_loader(DataLoader(dataset, batch_size, shuffle=True))
model = rd.distribute_model(Net())
rate *= rd.get_world_size()
optimizer = optim.SGD(model.parameters(), lr=rate)
""",
    """\
model = rd.distribute_model(Net())
rate = rd.scaled_lr(0.1)
optimizer = optim.SGD(model.parameters(), lr=rate * rd.get_world_size())
""",
]
VALID = [
    """\
loader = rd.distribute_loader(DataLoader(dataset, 64 // rd.get_world_size(), shuffle=True))
model = rd.distribute_model(Net())
optimizer = optim.SGD(model.parameters(), lr=0.1)
""",
    # the global batch grows with the processes
    """\
loader = rd.distribute_loader(DataLoader(dataset, 64, shuffle=True))
model = rd.distribute_model(Net())
optimizer = optim.SGD(model.parameters(), lr=0.1 * rd.get_world_size())
""",
    # divided, and multiplied again
    """\
loader = rd.distribute_loader(DataLoader(dataset, 64 // rd.get_world_size() * 4, shuffle=True))
model = rd.distribute_model(Net())
optimizer = optim.SGD(model.parameters(), lr=0.1 * rd.get_world_size())
""",
    # scaled by the global batch, whatever that is
    """\
batch_size = 64 // rd.get_world_size()
loader = rd.distribute_loader(DataLoader(dataset, batch_size, shuffle=True))
model = rd.distribute_model(Net())
optimizer = optim.SGD(model.parameters(), lr=0.1 * batch_size * rd.get_world_size() / 256)
""",
]


def find(project: Project) -> Iterator[Finding]:
    is_divided = _batch_is_divided(project)
    for rate, scope in dict.fromkeys(place for o in project.optimizers for place in rates_of(project.analysis, o)):
        if not _is_multiplied(project, rate, scope):
            continue
        if is_divided:
            message = "the rate is multiplied by the number of processes, and the batch is divided by it"
            yield found(RULE, scope.source, rate, message)
        elif _is_scaled(project, rate, scope):
            message = "the rate is scaled by the global batch, and multiplied by the number of processes again"
            yield found(RULE, scope.source, rate, message)


def _is_scaled(project: Project, rate: ast.expr, scope: Scope) -> bool:
    """Return whether the runtime scales a rate."""
    origins = project.ranks.origins(rate, scope)
    calls = [(n, where) for node, where in origins for n in walk(node) if isinstance(n, ast.Call)]
    return any(project.analysis.called(call, where) & LR_SCALING for call, where in calls)


def _batch_is_divided(project: Project) -> bool:
    """Return whether every training loader gets a batch size that is divided by the number of processes."""
    divided = []
    for loader in project.loaders:
        if TRAIN in loader.roles:
            for builder, scope in builders_of(project.analysis, loader):
                sizes = places_given(project.analysis, builder, scope, "batch_size")
                divided.append(bool(sizes) and all(_is_divided(project, *size) for size in sizes))
    return bool(divided) and all(divided)


def _is_divided(project: Project, size: ast.expr, scope: Scope) -> bool:
    """Return whether a batch size is `x / world_size`, without anything that multiplies it again."""
    operations = [
        (node, where)
        for expression, where in project.ranks.origins(size, scope)
        for node in (*walk(expression), where.source.parents.get(expression))
        if isinstance(node, (ast.BinOp, ast.AugAssign))
    ]
    if any(isinstance(node.op, ast.Mult) for node, _ in operations):
        return False
    parts = [(_second(node), where) for node, where in operations if isinstance(node.op, (ast.Div, ast.FloorDiv))]
    return any(project.ranks.is_world_size(part, where) for part, where in parts)


def _is_multiplied(project: Project, rate: ast.expr, scope: Scope) -> bool:
    """Return whether a rate is `lr * world_size` and nothing else: no batch size, no reference to divide by."""
    for expression, where in project.ranks.origins(rate, scope):
        holder = where.source.parents.get(expression)
        node = holder if isinstance(holder, ast.AugAssign) else expression
        if not isinstance(node, (ast.BinOp, ast.AugAssign)) or not isinstance(node.op, ast.Mult):
            continue
        first = node.target if isinstance(node, ast.AugAssign) else node.left
        pairs = ((first, _second(node)), (_second(node), first))
        if any(_is_simple(a) and project.ranks.is_world_size(b, where) for a, b in pairs):
            return True
    return False


def _second(node: ast.BinOp | ast.AugAssign) -> ast.expr:
    return node.value if isinstance(node, ast.AugAssign) else node.right


def _is_simple(node: ast.expr) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute, ast.Constant))
