"""The command line of a project: where its parser is made, where it parses, and what the result is called."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from retrofit.analysis.calls import argument_for, last_name
from retrofit.analysis.flow.main_guard import is_main_guard
from retrofit.analysis.flow.reachability import reached_calls
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance
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
    """Return the calls that parse the command line: in source order, those in branches after the others.

    Last those that look at the options so far in a function that adds some to a parser, as for one of several models.
    """
    found = [
        Parsing(node, scope)
        for node, scope in reached_calls(analysis)
        if isinstance(node.func, ast.Attribute) and _parses(analysis, node, scope)
    ]
    places = {parsing: parsing.scope.source.place(parsing.call) for parsing in found}
    return sorted(found, key=lambda parsing: (_looks_ahead(parsing), _is_in_branch(parsing), places[parsing]))


def _looks_ahead(parsing: Parsing) -> bool:
    """Return whether a function parses what is known with a parser that it is given: more options follow."""
    given = parsing.parser.id if isinstance(parsing.parser, ast.Name) else ""
    bindings = parsing.scope.bindings.get(given, [])
    is_given = bool(bindings) and all(binding.kind == "parameter" for binding in bindings)
    return is_given and last_name(parsing.call) == "parse_known_args"


def _is_in_branch(parsing: Parsing) -> bool:
    """Return whether only a test in its own function leads to a call, which parses again there, perhaps."""
    for outer in parsing.scope.source.ancestors(parsing.call):
        if outer is parsing.scope.node or is_main_guard(outer):
            return False
        if isinstance(outer, ast.If):
            return True
    return False


def _parses(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    assert isinstance(call.func, ast.Attribute)
    parsers = [value for value in analysis.evaluate(call.func.value, scope) if isinstance(value, Instance)]
    own = [value for value in parsers if analysis.classes.method(value.scope, call.func.attr) is None]
    bases = {base for value in own for base in analysis.classes.bases(value.scope)}
    return bool((analysis.called(call, scope) | {f"{base}.{call.func.attr}" for base in bases}) & PARSES)


def default_of_option(analysis: Analysis, node: ast.AST, scope: Scope) -> tuple[ast.expr, Scope] | None:
    """Return the default of the command line option that is read, `args.seed`; None where there is none."""
    if not isinstance(node, ast.Attribute) or not analysis.named(node.value, scope) & PARSES:
        return None
    flags = {f"--{node.attr}", f"--{node.attr.replace('_', '-')}"}
    for call, where in reached_calls(analysis):
        if last_name(call) == "add_argument":
            if flags.isdisjoint(part.value for part in call.args if isinstance(part, ast.Constant)):
                continue
            default = argument_for(call, [], "default")
            return (default, where) if default is not None else None
    return None
