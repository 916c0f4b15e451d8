"""A model that gets new weights after it was wrapped has the same ones on all processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted

SCRIPT = """\
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def reset_parameters(self):
        self.layer.reset_parameters()

    def forward(self, x):
        return self.layer(x)


def initialise(module):
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)


def renew(net):
    nn.init.normal_(net.layer.bias)


torch.manual_seed(0)
start = Net().state_dict()
loader = DataLoader(TensorDataset(torch.randn(16, 3)), 4, shuffle=True)
model = Net()
{before}
for run in range(2):
    {line}
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
"""
DRAWN = {
    "model.reset_parameters()": "rd.data.draw_together(model.reset_parameters)",
    "model.apply(initialise)": "rd.data.draw_together(model.apply, initialise)",
    "renew(model)": "rd.data.draw_together(renew, model)",
    "nn.init.xavier_uniform_(model.layer.weight)": "rd.data.draw_together(nn.init.xavier_uniform_, model.layer.weight)",
    "for p in model.parameters(): p.data.normal_()": "rd.data.draw_together(p.data.normal_)",
    "for p in model.parameters(): nn.init.normal_(p, std=0.1)": "rd.data.draw_together(nn.init.normal_, p, std=0.1)",
}
NOT_DRAWN = ["model.load_state_dict(start)", "nn.init.zeros_(model.layer.bias)", "model.train()", "x = torch.rand(3)"]


@pytest.mark.parametrize("line", DRAWN)
def test_weights_that_are_drawn_again_for_each_run_are_those_of_rank_0(tmp_path: Path, line: str) -> None:
    lines = converted(tmp_path, SCRIPT.format(before="", line=line))
    (found,) = [each for each in lines if "draw_together" in each]
    assert DRAWN[line] in found


@pytest.mark.parametrize("line", NOT_DRAWN)
def test_what_draws_no_weights_stays(tmp_path: Path, line: str) -> None:
    assert not any("draw_together" in each for each in converted(tmp_path, SCRIPT.format(before="", line=line)))


@pytest.mark.parametrize("line", [line for line in DRAWN if not line.startswith("for")])
def test_weights_that_are_drawn_before_the_model_is_wrapped_stay(tmp_path: Path, line: str) -> None:
    lines = converted(tmp_path, SCRIPT.format(before=f"{line}\nmodel = model.to('cpu')", line="print(run)"))
    assert not any("draw_together" in each for each in lines)


MADE = ["model = Net()", "model = Net().to('cpu')", "model = Net(); model = model.to('cpu')"]


@pytest.mark.parametrize("line", MADE)
def test_a_model_that_is_made_again_for_each_run_is_wrapped_again(tmp_path: Path, line: str) -> None:
    text = SCRIPT.format(before="print(sum(p.numel() for p in model.parameters()))", line=line)
    lines = converted(tmp_path, text)
    wraps = [number for number, each in enumerate(lines) if "model = rd.distribute_model(model)" in each]
    assert len(wraps) == 2
    (optimizer,) = [number for number, each in enumerate(lines) if each.startswith("optimizer =")]
    assert wraps[0] < lines.index("for run in range(2):") < wraps[1] < optimizer
