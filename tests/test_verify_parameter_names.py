"""`retrofit verify` names parameters by the model's attributes, or by the variable that holds them."""

from __future__ import annotations

import torch
from torch import nn

from retrofit.verify.trace.computation.models import ModelTrace


class Criterion:
    def __init__(self) -> None:
        self.margin = nn.Parameter(torch.zeros(()))
        self.heads = {"left": nn.Linear(2, 1)}


def trace_of(*models: nn.Module) -> ModelTrace:
    trace = ModelTrace(lambda is_start: None)
    trace.models.extend(models)
    return trace


def names_inside(trace: ModelTrace, parameters: list[torch.Tensor]) -> list[str]:
    return trace.names_of(parameters)


def test_parameters_of_no_called_model_have_the_name_of_their_variable() -> None:
    model, criterion = nn.Linear(2, 1), Criterion()
    logit_scale = nn.Parameter(torch.ones(()))
    codes = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))]
    given = [*model.parameters(), logit_scale, codes[1], criterion.margin, *criterion.heads["left"].parameters()]
    names = names_inside(trace_of(model), given)
    expected = ["weight", "bias", "logit_scale", "codes[1]", "criterion.margin"]
    assert names == [*expected, "criterion.heads['left'].weight", "criterion.heads['left'].bias"]


def test_parameters_that_no_variable_holds_are_numbered() -> None:
    model = nn.Linear(2, 1)
    assert trace_of(model).names_of([*model.parameters(), held_nowhere()][2:], first=7) == ["parameter 7"]


def held_nowhere() -> torch.Tensor:
    return nn.Parameter(torch.ones(()))
