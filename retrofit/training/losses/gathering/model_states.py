"""States that a model returns and is given with the next batch: of recurrent layers, memories of a transformer."""

from __future__ import annotations

import ast
from functools import partial
from typing import TYPE_CHECKING

from retrofit.analysis.flow.operands import inputs
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.flow.stored import ScopedName, variables_at

from ..writes import Write

if TYPE_CHECKING:
    from retrofit.training import Project


def is_model_state(project: Project, write: Write) -> bool:
    """Return whether a variable gets an output of a call of a model that takes it: output, state = model(x, state)."""
    written = set(variables_at(project.analysis, ast.parse(write.name, mode="eval").body, write.scope))
    steps = {step.node for step in origins(project.analysis, [Origin(write.value, write.scope)], _step(project))}
    calls = (call for model in project.models for call in model.calls if call.call in steps)
    return any(
        not written.isdisjoint(_given(project, Origin(part, call.scope)))
        for call in calls
        for part in (*call.call.args, *(keyword.value for keyword in call.call.keywords))
    )


def _given(project: Project, argument: Origin) -> set[ScopedName]:
    """Return the variables that an argument is computed from."""
    analysis = project.analysis
    parts = [part for part in origins(analysis, [argument], _step(project)) if isinstance(part.node, ast.expr)]
    return {variable for part in parts for variable in variables_at(analysis, part.node, part.scope)}  # type: ignore[arg-type]


def _step(project: Project) -> partial:
    return partial(inputs, project.analysis)
