"""Expressions that the user of a script decides: options of the command line, and entries of a configuration."""

from __future__ import annotations

import ast
from collections import defaultdict

from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.training.torch_api.launch import HOLDS_SETTINGS, PARSES, SETTINGS_NAMES


def is_option(analysis: Analysis, node: ast.Attribute, scope: Scope) -> bool:
    """Return whether `args.gpu`, or `config.train.device`, is something that the user of the script chooses."""
    root: ast.expr = node.value
    while isinstance(root, (ast.Attribute, ast.Subscript)):
        if analysis.named(root, scope) & (PARSES | HOLDS_SETTINGS):
            return True
        if isinstance(root, ast.Attribute) and root.attr.lower() in SETTINGS_NAMES:
            return True
        root = root.value
    names = analysis.named(root, scope)
    if any(name in PARSES | HOLDS_SETTINGS or name.rpartition(".")[0] in PARSES for name in names):
        return True
    return isinstance(root, ast.Name) and root.id.lower() in SETTINGS_NAMES


def set_options(analysis: Analysis) -> dict[str, list[tuple[ast.Assign, Scope]]]:
    """Return the statements that set options themselves, `args.device = ...`, by the name of the option."""
    return analysis.fact("set options", lambda: _set_options(analysis))


def _set_options(analysis: Analysis) -> dict[str, list[tuple[ast.Assign, Scope]]]:
    found: dict[str, list[tuple[ast.Assign, Scope]]] = defaultdict(list)
    for node, scope in reached_nodes(analysis).of(ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Attribute) and is_option(analysis, target, scope):
                found[target.attr].append((node, scope))
    return found
