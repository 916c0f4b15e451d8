"""Functions that a library runs as a command, with options that it reads from the command line itself."""

from __future__ import annotations

import ast

from retrofit.analysis.calls import is_method
from retrofit.analysis.scopes import FUNCTIONS, Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import LocalFunction
from retrofit.training.torch_api.launch import COMMAND_DECORATORS, COMMAND_RUNNERS, MAKES_RUN_FOLDER

from ..loops import Path


def is_given_by_command(analysis: Analysis, scope: Scope) -> bool:
    """Return whether a function's parameters come from the command line: @click.command(), fire.Fire(main)."""
    return scope.node in analysis.fact("run by command", lambda: _commands(analysis))


def _commands(analysis: Analysis) -> set[ast.AST]:
    found: set[ast.AST] = set()
    for scope in analysis.scopes():
        if isinstance(scope.node, FUNCTIONS):
            texts = [ast.unparse(part) for part in getattr(scope.node, "decorator_list", [])]
            if any(COMMAND_DECORATORS & set(text.partition("(")[0].split(".")) for text in texts):
                found.add(scope.node)
        for node in own_nodes(scope.node).of(ast.Call):
            if node.args and analysis.called(node, scope) & COMMAND_RUNNERS:
                values = analysis.evaluate(node.args[0], scope)
                found |= {value.node for value in values if isinstance(value, LocalFunction)}
    return found


def run_folder_decorator(analysis: Analysis, scope: Scope) -> ast.Call | None:
    """Return the decorator of a function that makes the folder of the run before it calls the function."""
    for part in getattr(scope.node, "decorator_list", []) if scope.parent is not None else []:
        if isinstance(part, ast.Call) and analysis.called(part, scope.parent) & MAKES_RUN_FOLDER:  # type: ignore[arg-type]
            return part
    return None


def first_functions(analysis: Analysis, paths: list[Path]) -> list[Scope]:
    """Return the functions in which the trainings begin, where nothing in the project runs them as they are.

    A library calls them with the options that it has read, or another script does. What a library calls of an object
    comes after the object's `__init__`. A function that is called after its library has made the run's folder is not
    the first one: what calls it is. None where the script itself begins one: what nothing calls is left over then.
    """
    found = [_first_function(analysis, path) for path in paths]
    return [] if None in found else list(dict.fromkeys(function for function in found if function is not None))


def _first_function(analysis: Analysis, path: Path) -> Scope | None:
    outermost = path.frames[-1].scope
    if outermost.is_function:
        return _making(analysis, outermost)
    if len(path.frames) == 1:
        return None
    called = path.frames[-2].scope
    is_command = is_given_by_command(analysis, called) and run_folder_decorator(analysis, called) is None
    return called if is_command else None


def _making(analysis: Analysis, function: Scope) -> Scope:
    """Return the `__init__` of the object that a method belongs to, any other function as it is."""
    owner = function.parent
    made_by = analysis.classes.method(owner, "__init__") if is_method(function) and owner is not None else None
    return function if made_by is None else made_by.scope
