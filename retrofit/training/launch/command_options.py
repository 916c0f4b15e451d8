"""Arguments of a script that a library reads for it: decorators, flags that are defined, parameters of a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.calls import default_of, last_name
from retrofit.analysis.flow.reachability import reached_calls
from retrofit.analysis.scopes import Scope, parameters
from retrofit.training.torch_api.launch import COMMAND_RUNNERS, DEFINES_FLAG, KEEPS_UNDERSCORES, OPTION_DECORATORS

from .commands import first_functions

if TYPE_CHECKING:
    from .. import Project


def decorator_calls(project: Project) -> Iterator[ast.Call]:
    """Yield the decorators that give the first function its arguments, as `@click.option("--lr", default=0.1)`.

    None where the command is one of a group: its name would be needed, too.
    """
    functions = first_functions(project.analysis, project.paths)
    decorators = getattr(functions[0].node, "decorator_list", []) if len(functions) == 1 else []
    calls = [part for part in decorators if isinstance(part, ast.Call)]
    named = {part: project.analysis.called(part, functions[0].parent or functions[0]) for part in calls}
    if any("click.command" in names for names in named.values()):
        yield from (part for part in calls if named[part] & OPTION_DECORATORS)


def defined_flags(project: Project) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield the flags that code defines by a function, `flags.DEFINE_float("lr", 0.1, "rate")`, and their defaults."""
    for node, _ in reached_calls(project.analysis):
        if last_name(node) in DEFINES_FLAG and len(node.args) > 1:
            name = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
            yield from [(f"--{name}", node.args[1])] if isinstance(name, str) else []


def function_parameters(project: Project) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield the flags of a function that a library calls with what the command line says, and their defaults.

    They are its parameters, `fire.Fire(main)`; typer takes those without a default by their places.
    """
    functions = first_functions(project.analysis, project.paths)
    runner = _runner(project, functions[0]) if len(functions) == 1 else ""
    for name in parameters(functions[0].node) if runner else ():  # type: ignore[arg-type]
        default = default_of(functions[0].node, name)  # type: ignore[arg-type]
        text = name if runner in KEEPS_UNDERSCORES else name.replace("_", "-")
        yield (name if runner == "typer.run" and default is None else f"--{text}"), default


def _runner(project: Project, function: Scope) -> str:
    """Return what runs a function by its parameters, "" where it is something else."""
    name = getattr(function.node, "name", "")
    for node, scope in reached_calls(project.analysis):
        if [getattr(part, "id", "") for part in node.args[:1]] == [name]:
            for runner in project.analysis.called(node, scope) & (COMMAND_RUNNERS - {"absl.app.run"}):
                return runner
    return ""
