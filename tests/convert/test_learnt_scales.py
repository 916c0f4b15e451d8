"""A temperature that a model returns next to its embeddings has no rows: all ranks have the same one."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted
from convert.training_runs import trains_as_one
from verify.projects.launch import Launcher

SCRIPT = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(6, 4), nn.Linear(6, 4)
        self.scale, self.bias = nn.Parameter(torch.tensor(2.6)), nn.Parameter(torch.zeros(1))

    def temperature(self):
        return self.scale.exp()

    def forward(self, x, z):
        a, b = F.normalize(self.left(x), dim=-1), F.normalize(self.right(z), dim=-1)
        RETURN


def similar(a, b, scale):
    return scale * (a @ b.t())


torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
loader = DataLoader(TensorDataset(torch.randn(32, 6), torch.randn(32, 6)), batch_size=8)
model = Pairs()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, z in loader:
    LINES
    loss = F.cross_entropy(logits, torch.arange(len(x)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("shown", *(p.abs().sum().item() for p in model.parameters()))
"""
RETURNED = "a, b, scale = model(x, z)\nlogits = scale * a @ b.t()"
SAME = {
    "an entry": ("return a, b, self.scale.exp()", RETURNED),
    "a variable": ("scale = self.scale.exp().clamp(max=100)\nreturn a, b, scale", RETURNED),
    "a method": ("return a, b, self.temperature()", RETURNED),
    "a function": ("return a, b, self.scale.exp()", "a, b, scale = model(x, z)\nlogits = similar(a, b, scale)"),
    "a place": (
        "return a, b, self.scale.exp()",
        "out = model(x, z)\na, b, scale = out[0], out[1], out[2]\nlogits = scale * a @ b.t()",
    ),
    "a dict": (
        'return {"a": a, "b": b, "scale": self.scale.exp()}',
        'out = model(x, z)\na, b, scale = out["a"], out["b"], out["scale"]\nlogits = scale * a @ b.t()',
    ),
    "a bias, too": (
        "return a, b, self.scale.exp(), self.bias",
        "a, b, scale, bias = model(x, z)\nlogits = scale * a @ b.t() + bias",
    ),
}


def script(returned: str, lines: str) -> str:
    body = SCRIPT.replace("RETURN", returned.replace("\n", "\n" + " " * 8))
    return body.replace("LINES", lines.replace("\n", "\n" + " " * 4))


def gathered(folder: Path, returned: str, lines: str) -> set[str]:
    """Return the names among a, b, scale and bias whose rows the conversion gathers."""
    text = "\n".join(converted(folder, script(returned, lines)))
    return {name for name in ("a", "b", "scale", "bias") if f"rd.loss.batch_rows({name})" in text}


@pytest.mark.parametrize("form", SAME)
def test_a_temperature_of_the_model_is_not_gathered(form: str, tmp_path: Path) -> None:
    assert gathered(tmp_path, *SAME[form]) == {"a", "b"}


@pytest.mark.parametrize(
    "scale", ["a.abs().sum(1, keepdim=True)", "self.scale * z[:, :1]", "self.scale + len(x) * x[:, :1]"]
)
def test_a_scale_of_each_sample_is_gathered(scale: str, tmp_path: Path) -> None:
    assert gathered(tmp_path, f"return a, b, {scale}", RETURNED) == {"a", "b", "scale"}


@pytest.mark.parametrize("form", ["a dict", "a bias, too"])
def test_the_training_is_that_of_one_process(form: str, tmp_path: Path, launcher: Launcher) -> None:
    trains_as_one(tmp_path, script(*SAME[form]), launcher)
