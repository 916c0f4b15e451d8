"""The command line of a project: where its parser is made, where it parses, and what the result is called."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.training.torch_api.launch import PARSES


@dataclass(frozen=True)
class Parsing:
    """A call that parses the command line."""

    call: ast.Call
    scope: Scope

    @property
    def parser(self) -> ast.expr:
        """The expression of the parser: `parser` of `parser.parse_args()`."""
        assert isinstance(self.call.func, ast.Attribute)
        return self.call.func.value


def find_parsings(analysis: Analysis) -> list[Parsing]:
    """Return the calls that parse the command line, in source order."""
    found = [
        Parsing(node, scope)
        for node, scope in reached_nodes(analysis)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _parses(analysis, node, scope)
    ]
    return sorted(found, key=lambda parsing: parsing.scope.source.place(parsing.call))


def _parses(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    return bool(analysis.called(call, scope) & PARSES)
