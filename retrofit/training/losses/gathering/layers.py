"""Layers that a step runs: what of them computes the same of the rows of all ranks on every rank."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from retrofit.analysis.flow.calls.graph import calls_in, functions_reached
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Result
from retrofit.training.data.batch_values import GRADIENT
from retrofit.training.torch_api.modules import LAYER_PACKAGE

from ..wrapped import functions_inside

if TYPE_CHECKING:
    from retrofit.training import Project

# Layers of torch.nn that compute the same of the whole batch on every rank, and draw nothing.
LAYERS = {
    "CosineSimilarity", "PairwiseDistance", "Softmax", "LogSoftmax", "Softplus", "Sigmoid", "LogSigmoid", "ReLU",
    "LeakyReLU", "Tanh", "Identity", "Linear", "Bilinear", "LayerNorm", "Flatten",
}  # fmt: skip


def runs_model(project: Project, call: ast.Call, scope: Scope) -> bool:
    """Return whether a call runs layers of a model, and not only a criterion that is a module."""
    if call not in project.batch_values.calls:
        return False
    functions = functions_inside(project.analysis, call, scope)
    given = [part for part in call.args if GRADIENT in project.batch_values.sources_of(part, scope)]
    inner = [f for one in functions for f in (one, *functions_reached(project.analysis, calls_in(one)))]
    layers = (is_other_layer(project.analysis, *place) for function in inner for place in calls_in(function))
    return not functions or not given or any(layers)


def is_other_layer(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    """Return whether a layer of torch is called that is not known to compute the same on all ranks."""
    for value in analysis.evaluate(call.func, scope):
        if isinstance(value, Result) and value.builder.startswith(LAYER_PACKAGE):
            name = value.builder.rpartition(".")[2]
            if name not in LAYERS and not name.endswith("Loss"):
                return True
    return False
