"""Let the mean over elements, of which ranks have different numbers, count each element of all ranks the same."""

from __future__ import annotations

import ast

from retrofit.analysis.edits import Edit
from retrofit.analysis.scopes import Scope
from retrofit.training import Project
from retrofit.training.losses.reductions.coupling import obstacle
from retrofit.training.model.gradients import has_gradients

FUNCTION = "rd.loss.chosen_mean"
NUMBERS = {"dim", "axis", "keepdim"}  # what is given by name, too


def chosen_mean(project: Project, node: ast.AST, scope: Scope) -> list[Edit]:
    """Return edits that make a function of the runtime of `errors[mask].mean()`; none where some rank may not come."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or project.distribution.is_by_hand:
        return []
    if node.func.attr != "mean" or any(keyword.arg not in NUMBERS for keyword in node.keywords):
        return []
    if obstacle(project, node, scope, together=True) or not has_gradients(project.analysis, scope, node):
        return []  # without gradients, also in a training, the function leaves the mean to each rank
    source = scope.source
    start, end = source.span(node)
    _, end_of_values = source.span(node.func.value)
    _, end_of_name = source.span(node.func)
    if "torch" in project.analysis.named(node.func.value, scope):
        return [Edit(source, start, end_of_name, FUNCTION)] if node.args else []
    given = source.text.index("(", end_of_name) + 1
    if source.text[end_of_values:end_of_name].lstrip().startswith(")"):  # the values are in parentheses of their own
        end_of_values = source.text.index(")", end_of_values) + 1
        if not node.args and not node.keywords and source.text[start] == "(":
            return [Edit(source, start, start, FUNCTION, order=1), Edit(source, end_of_values, end, "")]
    after = ", " if node.args or node.keywords else ""
    return [
        Edit(source, start, start, f"{FUNCTION}(", order=1),
        Edit(source, end_of_values, given if after else end, after or ")"),
    ]
