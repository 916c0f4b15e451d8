"""Predictions that an evaluation ranks have a row for each sample: they are not averaged over the ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import torch
from torch import nn, optim


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.loss = nn.Embedding(9, 4), nn.BCELoss()

    def forward(self, i):
        return torch.sigmoid(self.table(i) @ self.table.weight.t())


def get_batch(pairs, i):
    return torch.tensor(pairs[i : i + 4])


def evaluate(model, pairs):
    hits = []
    for i in range(0, len(pairs), 4):
        batch = get_batch(pairs, i)
        scores = model(batch)
        order = RANKED
        for row, wanted in zip(order, batch):
            hits.append(float(row[0] == wanted))
    print(sum(hits) / len(hits))


pairs = list(range(8))
model = Net()
optimizer = optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for i in range(0, len(pairs), 4):
        batch = get_batch(pairs, i)
        optimizer.zero_grad()
        loss = model.loss(model(batch), torch.eye(9)[batch])
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        evaluate(model, pairs)
"""
FORMS = ["torch.sort(scores, dim=1, descending=True)[1]", "scores.argsort(1)", "scores.topk(3, 1)[1]"]


@pytest.mark.parametrize("ranked", FORMS)
def test_rows_of_predictions_are_not_averaged(tmp_path: Path, ranked: str) -> None:
    text = "".join(file.text for file in conversion(tmp_path, SCRIPT.replace("RANKED", ranked)).files)
    assert "reduce_loss(scores" not in text
