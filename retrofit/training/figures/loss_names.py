"""The terms of a project's training losses, and the names that losses and what they are computed from have."""

from __future__ import annotations

import ast

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.keys import Keys
from retrofit.analysis.flow.reaching_definitions import live_bindings
from retrofit.analysis.flow.variables import Variable
from retrofit.analysis.interpreter.state import OTHER, Flow
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Binding, Scope

from .. import Project
from ..data.batch_values import GRADIENT
from ..loops import Path
from ..losses.flow import entries_of_losses, loss_parts
from ..losses.loss_reads import names_of, terms_of
from ..losses.reductions.reduction import MEAN_OF_RANKS, reduction_for
from ..losses.terms import loss_expressions
from ..model.models import Call
from ..steps.draws_per_batch import losses_from
from .counts.size_uses import is_carried_count
from .kinds import BATCH, MEAN, SUM, TENSORS

PLACES = (ast.Name, ast.Attribute, ast.Subscript)


class LossNames:
    """`terms`: the calls that compute them; `names`: those of losses and of their terms, by function.

    `products`: the operations by which terms get a factor. `entries`: what of the value of an expression the loss is.
    """

    def __init__(self, project: Project) -> None:
        self._project = project
        self._trained: dict[Scope, set[str]] = {}
        self.terms: set[ast.AST] = set()
        self.names: dict[Scope, set[str]] = {}
        self.products: set[ast.AST] = set()
        self.entries: dict[ast.AST, set[Keys]] = {}
        self._scalars: set[Binding] = set()
        for path in project.paths:
            for (part, _), is_linear in loss_parts(project.analysis, path).items():
                if isinstance(part, ast.BinOp) and isinstance(part.op, (ast.Mult, ast.Div)):
                    self.products.add(part)
                if is_linear and isinstance(part, ast.Call):
                    self.terms.add(part)
            for part, keys in entries_of_losses(project.analysis, path).items():
                self.entries.setdefault(part, set()).update(keys)
            frame = path.frames[0]
            call = frame.node
            assert isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
            self.names.setdefault(frame.scope, set()).update(terms_of(names_of(call.func.value), frame))
            if not call.args and not any(keyword.arg == "gradient" for keyword in call.keywords):
                self._add_scalars(call.func.value, frame.scope)

        self._add_returned()

    def _add_returned(self) -> None:
        """Add the names that an evaluation has for what a model returns as its loss: `_, loss = model(x, y)`."""
        project = self._project
        made: dict[ast.expr | None, tuple[Variable, str]] = {}  # the model, and the method that is called
        made.update({call.call: (model.variable, _method(call)) for model in project.models for call in model.calls})
        means = [path for path in project.paths if _is_mean(project, path)]
        known = {
            (made[value], path)
            for frame in (path.frames[0] for path in means)
            for name in self.names.get(frame.scope, ())
            for value, path in _bound(frame.scope, name)
            if value in made
        }
        for scope in project.analysis.scopes() if known else ():
            for name in scope.bindings:
                if any((made.get(value), path) in known for value, path in _bound(scope, name)):
                    self.names.setdefault(scope, set()).add(name)

    def _add_scalars(self, node: ast.expr, scope: Scope) -> None:
        """Note the values of which a backward call without arguments is made: one number each, as are their factors."""
        if isinstance(node, ast.BinOp):
            self._add_scalars(node.left, scope)
            self._add_scalars(node.right, scope)
        elif isinstance(node, ast.Call) and last_name(node) == "scale":
            for part in node.args:
                self._add_scalars(part, scope)
        elif isinstance(node, ast.Name):
            added = [b for b in live_bindings(node, scope)[1] if b.kind == "value" and b not in self._scalars]
            self._scalars.update(added)
            for binding in added:
                if binding.value is not None and not binding.path:
                    self._add_scalars(binding.value, scope)

    def is_unseen(self, node: ast.Name, scope: Scope, flow: Flow) -> bool:
        """Return whether a loss comes from what is not followed, or is one number of a model: `outputs["loss"]`."""
        bindings = live_bindings(node, scope)[1] if flow.kind == BATCH else []
        is_one = bool(bindings) and self._scalars.issuperset(bindings)
        return not flow.is_read and (flow.kind == OTHER or is_one)

    def weighs(self, factor: ast.expr, scope: Scope, flow: Flow, other: Flow) -> bool:
        """Return whether an operand is a factor of a term of the loss, or of samples, that each rank has its own of.

        No gradient flows through it, as far as is known: the ranks' average does not make it that of all samples.
        """
        node = scope.source.parents[factor]
        assert isinstance(node, ast.BinOp)
        if isinstance(node.op, ast.Mult) and other.kind in TENSORS and not other.is_read and is_carried_count(flow):
            return True
        if node not in self.products or other.is_read:
            return False
        if flow.kind == other.kind == OTHER:
            return not self._learns(factor, scope) and any(self._learns(p, scope) for p in (node.left, node.right))
        return other.kind in (MEAN, SUM) and ((flow.kind in (MEAN, SUM) and flow.is_read) or flow.kind == OTHER)

    def _learns(self, node: ast.expr, scope: Scope) -> bool:
        return GRADIENT in self._project.batch_values.sources_of(node, scope)

    def trained(self, scope: Scope) -> set[str]:
        """Return the names in a function that the loss is computed from."""
        if scope not in self._trained:
            found = {name for name, where in losses_from(self._project)[1] if where is scope}
            for path in self._project.paths:
                for expression, where in loss_expressions(path):
                    if where is scope:
                        parts = (part for part in walk(expression) if isinstance(part, PLACES))
                        found |= {ast.unparse(part) for part in parts}
            self._trained[scope] = found
        return self._trained[scope]


def _method(call: Call) -> str:
    return "" if call.method == "forward" else call.method


def _bound(scope: Scope, name: str) -> list[tuple[ast.expr | None, tuple[int, ...]]]:
    return [(binding.value, binding.path) for binding in scope.bindings.get(name, []) if binding.kind == "value"]


def _is_mean(project: Project, path: Path) -> bool:
    frame = path.frames[0]
    assert isinstance(frame.node, ast.Call) and isinstance(frame.node.func, ast.Attribute)
    return reduction_for(project, frame.node.func.value, frame.scope) == MEAN_OF_RANKS
