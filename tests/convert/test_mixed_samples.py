"""Functions in which each sample meets all others: along the axis of the samples, by their order, in another axis."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(48, 6), torch.randint(0, 3, (48,))), batch_size=8)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    out = model(x)
    each = F.cross_entropy(out, y, reduction="none")
    LINES
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
MIXED = {
    "softmax over the samples": "loss = (F.softmax(each.detach(), dim=0) * each).sum()",
    "softmax of all": "loss = (each.view(-1).softmax(-1) * each).sum()",
    "normalize": "loss = F.mse_loss(F.normalize(out, dim=0), x[:, :3])",
    "cosine of all samples": "loss = 1 - F.cosine_similarity(out[:, 0], x[:, 0], dim=0)",
    "the sample at the other end": "loss = F.mse_loss(out, x.flip(0)[:, :3])",
    "the sample before": "loss = F.mse_loss(out, torch.roll(x, 1, 0)[:, :3])",
    "the hardest": "loss = each.topk(4)[0].mean()",
    "the hardest, unpacked": "hard, _ = each.topk(4)\nloss = hard.mean()",
    "the hardest, sorted": "hard, _ = torch.sort(each, descending=True)\nloss = hard[:4].mean()",
    "correlation": "loss = 1 - torch.corrcoef(torch.stack([out[:, 0], x[:, 0]]))[0, 1]",
    "one and all": "loss = sum(((row - out) ** 2).sum(1).min() for row in out) / len(out)",
    "one and all, by number": (
        "loss = 0.0\nfor i in range(len(out)):\n    loss = loss + torch.logsumexp((out[i] - out).pow(2).sum(1), 0)"
    ),
    "another axis": "a = out.view(-1, 3, 1).unsqueeze(0)\nloss = (a - a.permute(1, 0, 2, 3)).abs().exp().mean()",
}
SUMS = {
    "the second argument": "low = x.sum(0) / len(x)\nloss = F.mse_loss(out, torch.max(x, low)[:, :3])",
    "a mean as an argument": "loss = torch.where(x > 0, x, x.mean(0)).sum(1).mul(each).mean()",
    "both sides": "loss = 1 - (F.relu(out[:, 0] - out[:, 0].mean()) * (x[:, 0] - x[:, 0].mean())).mean()",
}
OF_EACH = {
    "softmax": "loss = (out.softmax(1) * x[:, :3]).sum(1).mean()",
    "cosine": "loss = 1 - F.cosine_similarity(out, x[:, :3]).mean()",
    "another order of the features": "loss = F.mse_loss(out, x.flip(1)[:, :3])",
    "the largest of each": "loss = out.topk(2)[0].mean()",
    "the largest of each, sorted": "best, _ = torch.sort(out)\nloss = best[:, :2].mean()",
    "matrices": "w = x.view(-1, 3, 2).reshape(-1, 3, 2)\nloss = (w @ w.transpose(-2, -1)).mean() + out.mean()",
    "quantiles": "e = x[:, :3] - out\nloss = torch.max(0.9 * e, -0.1 * e).mean()",
    "own sums": "loss = (out.t() / torch.sum(x, 1)).t().mean()",
    "a sample with itself": (
        "loss = 0.0\nfor i in range(len(out)):\n    own = x[i, :3]\n    loss = loss + (out[i] - own).pow(2).sum()\n"
        "loss = loss / len(out)"
    ),
}


def findings(folder: Path, lines: str) -> tuple[set[str], str]:
    """Return the codes of couplings that are found or refused, and the converted script."""
    result = conversion(folder, SCRIPT.replace("LINES", lines.replace("\n", "\n    ")))
    codes = {finding.code for finding in [*result.findings, *result.refusals]} & {"RF303", "RF309"}
    return codes, "".join(file.text for file in result.files if file.path.name == "train.py")


@pytest.mark.parametrize("form", MIXED)
def test_samples_that_meet_are_found(tmp_path: Path, form: str) -> None:
    codes, _ = findings(tmp_path, MIXED[form])
    assert codes


@pytest.mark.parametrize("form", SUMS)
def test_sums_and_means_among_the_arguments_are_those_of_all_ranks(tmp_path: Path, form: str) -> None:
    codes, text = findings(tmp_path, SUMS[form])
    assert codes == {"RF309"}
    assert "rd.loss.batch_mean(" in text


@pytest.mark.parametrize("form", OF_EACH)
def test_what_is_computed_of_each_sample_alone_is_left(tmp_path: Path, form: str) -> None:
    codes, text = findings(tmp_path, OF_EACH[form])
    assert codes == set()
    assert "batch_rows" not in text


MARGIN = """\
class Margin(nn.Module):
    def forward(self, s, t):
        low = (t * (t < 0)).sum(0) / ((t < 0).sum(0) + 1)
        return F.mse_loss(s, torch.max(t, low))


parts = []
for _ in range(2):
    parts.append(Margin())
parts = [None] + parts
"""


@pytest.mark.parametrize("call", ["parts[1](out, x[:, :3])", "{'a': parts}['a'][2](out, x[:, :3])"])
def test_what_a_criterion_in_a_list_computes_is_read(tmp_path: Path, call: str) -> None:
    text = SCRIPT.replace("LINES", f"loss = {call}").replace(
        "torch.manual_seed(0)\n", MARGIN + "torch.manual_seed(0)\n"
    )
    result = conversion(tmp_path, text)
    assert "rd.loss.batch_sum(" in "".join(file.text for file in result.files)
