"""Several outputs for each sample, in a tensor with an axis of its own for them."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(16, 4), torch.randn(16, 4)), batch_size=4, shuffle=True)
model, teacher = nn.Linear(4, 4), nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
times = 6
for epoch in range(2):
    for x, y in loader:
        out = model(x)
        repeated = x.repeat(times, 1)
        rows = repeated.shape[0] // times
        with torch.no_grad():
            seen = teacher(repeated)
        {mean}
        u = -(seen.softmax(-1) * seen.log_softmax(-1)).sum(-1, keepdim=True)
        d = (out.softmax(1) - seen.softmax(-1)) ** 2
        mask = (u < 1.0).float()
        loss = nn.functional.mse_loss(out, y) + torch.sum(mask * d) / (2 * torch.sum(mask) + 1e-16)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
OF_EACH_SAMPLE = {
    "name": "seen = torch.mean(seen.reshape(times, rows, 4), dim=0)",
    "size": "seen = seen.view(times, x.size(0), -1).mean(0)",
    "tuple": "seen = seen.reshape((times, x.shape[0], 4)).mean(dim=0)",
    "unknown times": "seen = seen.view(-1, x.shape[0], 4).mean(0)",
}
OF_THE_BATCH = {
    "samples first": "seen = seen.reshape(rows, times, 4).mean(0)[:1]",
    "of both": "seen = seen.reshape(x.size(0), times * x.size(0) // x.size(0), 4).mean(0)[:1]",
    "rows of a table": "seen = seen.view(-1, teacher.weight.shape[0]).mean(0, keepdim=True)",
    "the rest": "seen = seen.view(len(repeated), -1).mean(0, keepdim=True)",
}


@pytest.mark.parametrize("form", OF_EACH_SAMPLE)
def test_a_mean_over_the_outputs_for_a_sample_is_of_one_rank(tmp_path: Path, form: str) -> None:
    text = "\n".join(converted(tmp_path, SCRIPT.format(mean=OF_EACH_SAMPLE[form])))
    assert "batch_mean" not in text
    assert "rd.loss.rank_share(rd.loss.batch_count(2 * torch.sum(mask)) + 1e-16)" in text


@pytest.mark.parametrize("form", OF_THE_BATCH)
def test_a_mean_over_the_samples_is_that_of_all_ranks(tmp_path: Path, form: str) -> None:
    text = "\n".join(converted(tmp_path, SCRIPT.format(mean=OF_THE_BATCH[form])))
    assert "seen = rd.loss.batch_mean(seen." in text


CHOSEN_BY_A_MEAN = {
    "name": "seen = torch.mean(seen.view(rows, -1), 0)",
    "method": "seen = seen.view(rows, -1).mean(0)",
    "kept axis": "seen = seen.view(rows, -1).mean(0, keepdim=True)",
    "sum": "seen = seen.view(rows, -1).sum(0) / 8",
}


@pytest.mark.parametrize("form", CHOSEN_BY_A_MEAN)
def test_the_count_of_a_mask_by_a_mean_of_the_batch_is_that_of_all_ranks(tmp_path: Path, form: str) -> None:
    script = SCRIPT.replace("        repeated = x.repeat(times, 1)\n", "        repeated = x\n").replace(
        " // times", ""
    )
    script = script.replace("(out.softmax(1) - seen.softmax(-1)) ** 2", "(out - y) ** 2")
    script = script.replace("u = -(seen.softmax(-1) * seen.log_softmax(-1)).sum(-1, keepdim=True)", "u = y - seen")
    text = "\n".join(converted(tmp_path, script.format(mean=CHOSEN_BY_A_MEAN[form])))
    assert "seen = rd.loss.batch_" in text
    assert "rd.loss.rank_share(rd.loss.batch_count(2 * torch.sum(mask)) + 1e-16)" in text
