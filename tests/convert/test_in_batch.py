"""Which operations compare the samples of a batch with each other, however they are written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from retrofit.cli import main

SCRIPT = """\
import torch
import torch.nn.functional as F
from pytorch_metric_learning import losses
from torch import nn
from torch.utils.data import DataLoader

loader = DataLoader(dataset, batch_size=8, shuffle=True)
model = nn.Linear(8, 4)
queue = torch.zeros(4, 100)
criterion = losses.NTXentLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    a, b = model(x), model(y)
    z = torch.cat([a, b])
    n = len(z)
    pairs = {pairs}
    loss = F.mse_loss(pairs, target)
    loss.backward()
    optimizer.step()
"""
COUPLED = [
    "z @ z.T",
    "torch.mm(z, z.t().contiguous())",
    "torch.matmul(z, z.transpose(0, 1))",
    "z.mm(torch.t(z))",
    "a.matmul(b.permute(1, 0))",
    "torch.addmm(torch.zeros(n, n), z, z.t())",
    "torch.zeros(n, n).addmm_(z, z.t(), beta=1, alpha=-2)",
    "torch.cdist(z, z, p=2)",
    "torch.pdist(z)",
    "torch.einsum('ic,jc->ij', a, b)",
    "torch.einsum('ic, cj -> ij', z, z.T)",
    "F.cosine_similarity(z.unsqueeze(1), z.unsqueeze(0), dim=-1)",
    "nn.CosineSimilarity(dim=2)(a[:, None], b[None])",
    "(a.unsqueeze(0) - b.unsqueeze(1)).pow(2).sum(2)",
    "criterion(z, y)",
]
ROW_BY_ROW = [
    "a @ queue",
    "torch.einsum('nc,ck->nk', a, queue)",
    "torch.einsum('nc,nc->n', a, b)",
    "F.cosine_similarity(a, b)",
    "torch.bmm(a.unsqueeze(1), b.unsqueeze(2))",
    "torch.matmul(z.view(n, 2, 2), z.view(n, 2, 2).transpose(1, 2))",
    "torch.arange(n)[:, None] - torch.arange(n)[None]",
    "a.unsqueeze(1) * b.unsqueeze(2)",
    "torch.mm(a, model.weight)",
]


def codes_of(script: Path, pairs: str, capsys: pytest.CaptureFixture[str]) -> set[str]:
    script.write_text(SCRIPT.replace("{pairs}", pairs))
    main(["check", str(script), "--format", "json"])
    return {finding["code"] for finding in json.loads(capsys.readouterr().out)["findings"]}


@pytest.mark.parametrize("pairs", COUPLED)
def test_a_comparison_within_the_batch_is_found(pairs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert {"RF303", "RF309"} & codes_of(tmp_path / "train.py", pairs, capsys)  # RF309: it is given those of all


@pytest.mark.parametrize("pairs", ROW_BY_ROW)
def test_what_each_sample_has_alone_is_not(pairs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = codes_of(tmp_path / "train.py", pairs, capsys)
    assert "RF303" not in found and "RF103" in found
