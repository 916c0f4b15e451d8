"""The terms of a project's training losses, and the names that losses and what they are computed from have."""

from __future__ import annotations

import ast

from retrofit.analysis.scopes import Scope

from .. import Project
from ..losses.flow import loss_parts
from ..losses.loss_reads import names_of, terms_of
from ..losses.terms import loss_expressions

PLACES = (ast.Name, ast.Attribute, ast.Subscript)


class LossNames:
    """`terms`: the calls that compute them; `names`: those of losses and of their terms, by function."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._trained: dict[Scope, set[str]] = {}
        self.terms: set[ast.AST] = set()
        self.names: dict[Scope, set[str]] = {}
        for path in project.paths:
            for (part, _), is_linear in loss_parts(project.analysis, path).items():
                if is_linear and isinstance(part, ast.Call):
                    self.terms.add(part)
            frame = path.frames[0]
            call = frame.node
            assert isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
            self.names.setdefault(frame.scope, set()).update(terms_of(names_of(call.func.value), frame))

    def trained(self, scope: Scope) -> set[str]:
        """Return the names in a function that the loss is computed from."""
        if scope not in self._trained:
            found: set[str] = set()
            for path in self._project.paths:
                for expression, where in loss_expressions(path):
                    if where is scope:
                        parts = (part for part in ast.walk(expression) if isinstance(part, PLACES))
                        found |= {ast.unparse(part) for part in parts}
            self._trained[scope] = found
        return self._trained[scope]
