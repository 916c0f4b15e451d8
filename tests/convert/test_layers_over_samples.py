"""Attention and recurrent layers that take the samples of a batch for one sequence, and those that do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.table, self.head = nn.Linear(1, 8), nn.Embedding(5, 8), nn.Linear(8, 3)
        LAYER

    def forward(self, x):
        LINES


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2)

    def forward(self, h):
        return h + self.attend(h, h, h)[0]


class Meeting(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, h):
        return h + torch.softmax(self.query(h) @ self.key(h).t(), 1) @ h


def joined(samples):
    return torch.stack([x for x, _ in samples], 1), torch.stack([y for _, y in samples])


loader = DataLoader(TensorDataset(torch.randn(48, 6), torch.randint(0, 3, (48,))), batch_size=8)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
ATTENTION = "self.mix = nn.MultiheadAttention(8, 2)"
IN_A_LIST = "self.mix = nn.ModuleList([nn.TransformerEncoderLayer(8, 2) for _ in range(2)])"
BLOCKS = "self.mix = nn.ModuleList([Block() for _ in range(2)])"
STACK = "self.mix = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2), 1)"
H = "h = self.embed(x.unsqueeze(-1))"
MIXING = {
    "attention": (ATTENTION, f"{H}\nh, _ = self.mix(h, h, h)\nreturn self.head(h.mean(1))"),
    "a stack": (STACK, f"{H}\nreturn self.head(self.mix(h).mean(1))"),
    "a list of layers": (IN_A_LIST, f"{H}\nfor layer in self.mix:\n    h = layer(h)\nreturn self.head(h.mean(1))"),
    "one entry of each": (STACK, "h = self.embed(x[:, :1]).unsqueeze(1)\nreturn self.head(self.mix(h).squeeze(1))"),
    "transposed in place": (
        "self.mix = nn.LSTM(8, 8, batch_first=True)",
        f"{H}.transpose_(0, 1)\nh, _ = self.mix(h)\nreturn self.head(h[-1])",
    ),
    "recurrent": ("self.mix = nn.LSTM(8, 8)", f"{H}\nh, _ = self.mix(h)\nreturn self.head(h[:, -1])"),
    "one sequence": (
        ATTENTION.replace("2)", "2, batch_first=True)"),
        "h = self.embed(x[:, :1])\nh = h.view(1, h.size(0), -1)\nh, _ = self.mix(h, h, h)\nreturn self.head(h[0])",
    ),
}
OF_EACH = {
    "batch first": (
        ATTENTION.replace("2)", "2, batch_first=True)"),
        f"{H}\nh, _ = self.mix(h, h, h)\nreturn self.head(h.mean(1))",
    ),
    "permuted": (ATTENTION, f"{H}.permute(1, 0, 2)\nh, _ = self.mix(h, h, h)\nreturn self.head(h.mean(0))"),
    "transposed in place": (STACK, f"{H}.transpose_(0, 1)\nreturn self.head(self.mix(h)[-1])"),
    "steps, then in place": (
        "self.mix = nn.LSTM(8, 8, batch_first=True)",
        "steps = []\nfor t in range(x.size(1)):\n    steps.append(self.embed(x[:, t : t + 1]))\n"
        "h = torch.stack(steps, dim=0).transpose_(0, 1)\n"
        "h, _ = self.mix(h)\nreturn self.head(h[:, -1])",
    ),
    "transposed": (STACK, f"{H}.transpose(0, 1)\nreturn self.head(self.mix(h)[-1])"),
    "a list of layers": (
        IN_A_LIST,
        f"{H}.permute(1, 0, 2)\nfor layer in self.mix:\n    h = layer(h)\nreturn self.head(h.mean(0))",
    ),
    "blocks in a list": (
        BLOCKS,
        f"{H}.permute(1, 0, 2)\nfor block in self.mix:\n    h = block(h)\nreturn self.head(h.mean(0))",
    ),
    "step by step": (
        "self.mix = nn.GRU(8, 8)",
        "ids, h = (x > 0).long().t(), torch.zeros(1, x.size(0), 8)\nfor t in range(ids.size(0)):\n"
        "    out, h = self.mix(self.table(ids[t]).unsqueeze(0), h)\nreturn self.head(out[0])",
    ),
    "one step of all": (
        "self.mix = nn.GRU(1, 8)",
        "h = torch.zeros(1, x.size(0), 8)\nfor t in range(x.size(1)):\n"
        "    out, h = self.mix(x[:, t].view(1, -1, 1), h)\nreturn self.head(h[-1])",
    ),
    "merged with the steps": (
        "self.mix = nn.LSTM(8, 8)",
        f"{H}.permute(1, 0, 2)\nout, _ = self.mix(h)\nt, n, c = out.size()\n"
        "return self.head(out.view(t * n, c)).view(t, n, -1).mean(0)",
    ),
}


def found(folder: Path, layer: str, lines: str, text: str = SCRIPT) -> list[str]:
    """Return the messages of the couplings that are found, and the calls that would gather or add up over the ranks."""
    script = text.replace("LAYER", layer).replace("LINES", lines.replace("\n", "\n        "))
    result = conversion(folder, script)
    assert not result.refusals
    messages = [finding.message for finding in result.findings if finding.code in ("RF303", "RF309")]
    return [*messages, *(line for file in result.files for line in file.text.splitlines() if "rd.loss.batch" in line)]


@pytest.mark.parametrize("form", MIXING)
def test_a_layer_that_runs_over_the_samples_is_listed(tmp_path: Path, form: str) -> None:
    (message,) = found(tmp_path, *MIXING[form])
    assert "runs over the samples" in message


@pytest.mark.parametrize("form", OF_EACH)
def test_a_layer_that_runs_over_the_steps_of_each_sample_is_not(tmp_path: Path, form: str) -> None:
    assert found(tmp_path, *OF_EACH[form]) == []


def test_batches_of_a_function_of_the_project_may_have_other_axes(tmp_path: Path) -> None:
    text = SCRIPT.replace("batch_size=8)", "batch_size=8, collate_fn=joined)")
    assert found(tmp_path, *MIXING["attention"], text) == []


@pytest.mark.parametrize(
    ("layer", "lines"),
    [
        ("nn.ModuleList([Meeting() for _ in range(2)])", "for block in self.mix:\n    h = block(h)"),
        ("nn.Sequential(nn.Linear(8, 8), Meeting())", "h = self.mix(h)"),
    ],
)
def test_samples_that_meet_in_a_block_of_a_container_are_seen(tmp_path: Path, layer: str, lines: str) -> None:
    lines = f"h = self.embed(x[:, :1])\n{lines}\nreturn self.head(h)"
    text = SCRIPT.replace("LAYER", f"self.mix = {layer}").replace("LINES", lines.replace("\n", "\n        "))
    assert "RF303" in [refusal.code for refusal in conversion(tmp_path, text).refusals]
