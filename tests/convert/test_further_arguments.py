"""Rows that a layer takes as `*args` or `**options` are those of the samples."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Sub(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    FORWARD


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.sub, self.drop = Sub(nn.Linear(4, 4)), nn.Dropout(0.1)

    def forward(self, x):
        h = CALL
        return self.drop(h)


torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(22, 4)), 4, shuffle=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in loader:
    optimizer.zero_grad()
    z = model(x)
    LOSS.backward()
    optimizer.step()
"""
FORMS = {
    "the first": ("def forward(self, *args):\n        return self.inner(args[0])", "self.sub(x)"),
    "given on": ("def forward(self, *args):\n        return self.inner(*args) + args[0]", "self.sub(x)"),
    "unpacked": ("def forward(self, *args):\n        a, b = args\n        return self.inner(b)", "self.sub(2, x)"),
    "after others": ("def forward(self, scale, *args):\n        return scale * self.inner(args[0])", "self.sub(2, x)"),
    "of a list": ("def forward(self, *args):\n        return self.inner(args[1])", "self.sub(*[2, x])"),
    "by name": ("def forward(self, **options):\n        return self.inner(options['x'])", "self.sub(x=x)"),
    "any by name": ("def forward(self, a=1, **more):\n        return self.inner(*more.values())", "self.sub(a=2, x=x)"),
    "of a dict": ("def forward(self, **options):\n        return self.inner(options['x'])", "self.sub(**{'x': x})"),
}
MEAN = "(z - x).pow(2).mean()"


def script(form: str, loss: str) -> str:
    forward, call = FORMS[form]
    return SCRIPT.replace("FORWARD", forward).replace("CALL", call).replace("LOSS", loss)


@pytest.mark.parametrize("form", FORMS)
def test_dropout_of_them_is_not_listed(tmp_path: Path, form: str) -> None:
    assert not conversion(tmp_path, script(form, MEAN)).listed


@pytest.mark.parametrize("form", FORMS)
def test_they_are_gathered_where_samples_are_compared(tmp_path: Path, form: str) -> None:
    loss = "nn.functional.cross_entropy(z @ z.t(), torch.arange(len(z)))"
    result = conversion(tmp_path, script(form, loss))
    assert not result.refusals
    assert "z = rd.loss.batch_rows(model(x))" in result.files[0].text
