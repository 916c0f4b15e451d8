"""RF502 wrapper-prefix-saved: a checkpoint of the DDP wrapper instead of the model in it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import partial

from retrofit.analysis.flow.reachability import calls_named
from retrofit.analysis.flow.sources import Origin, origins, sources
from retrofit.analysis.flow.stored import stored_in
from retrofit.analysis.scopes import Scope
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project

RULE = CATALOG["RF502"]
INVALID = [
    """\
model = DDP(Net())
for images, labels in loader:
    criterion(model(images), labels).backward()
if dist.get_rank() == 0:
    torch.save(model.state_dict(), "model.pt")
""",
    """\
model = DDP(Net())
state = {"epoch": 3}
state["model"] = model.state_dict()  # RF502
if dist.get_rank() == 0:
    torch.save(state, "model.pt")
""",
    """\
model = DDP(Net())
if dist.get_rank() == 0:
    torch.save(model, "whole.pt")  # RF502
""",
    """\
def content(net, epoch):
    return {"model": net.state_dict(), "epoch": epoch}


model = DDP(Net())
state = content(model, 3)
torch.save(state, "model.pt")
""",
]
VALID = [
    """\
model = DDP(Net())
for images, labels in loader:
    criterion(model(images), labels).backward()
if dist.get_rank() == 0:
    torch.save(model.module.state_dict(), "model.pt")
""",
    # the model inside, by its own name
    """\
net = Net()
model = DDP(net)
if dist.get_rank() == 0:
    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, "model.pt")
""",
    # saved before it was wrapped
    """\
model = Net()
torch.save(model.state_dict(), "first.pt")
model = DDP(model)
""",
    # saves what is inside, wrapped or not
    """\
model = DDP(Net())
inner = model.module if hasattr(model, "module") else model
torch.save(inner.state_dict(), "model.pt")
""",
]


def find(project: Project) -> Iterator[Finding]:
    if not project.wrapping.sites:
        return
    seen: set[ast.AST] = set()
    for call, scope in calls_named(project.analysis, {"torch.save"}):
        for part, where in _saved(project, call.args[:1], scope):
            model = part.func.value if isinstance(part, ast.Call) else part  # type: ignore[attr-defined]
            if part in seen or project.wrapping.wrapped(model, where) is None:
                continue
            seen.add(part)
            message = f"{ast.unparse(part)} is saved with the wrapper around it"
            yield found(RULE, where.source, part, message)


def _saved(project: Project, nodes: list[ast.expr], scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield the models, and the calls of state_dict, in what is saved: itself, or an entry of a dict."""
    for node, where, _ in origins(project.analysis, [Origin(node, scope) for node in nodes], partial(_parts, project)):
        if isinstance(node, (ast.Name, ast.Attribute)) or _is_state(node):
            yield node, where  # type: ignore[misc]


def _parts(project: Project, origin: Origin) -> Iterable[Origin] | None:
    """Return the entries of a dict, and what is put into one in a variable; None for another expression."""
    node, scope = origin.node, origin.scope
    if isinstance(node, ast.Dict):
        return [origin.to(value) for value in node.values]
    if not isinstance(node, (ast.Name, ast.Attribute)):
        return () if _is_state(node) else None
    if project.wrapping.wrapped(node, scope) is not None:
        return ()
    put = [Origin(stored.value, stored.scope) for stored in stored_in(project.analysis, node, scope)]
    return [*sources(project.analysis, origin), *put]


def _is_state(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "state_dict"
