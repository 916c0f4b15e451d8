"""Norms of what a batch gives: to their own power they are sums over the samples, else they couple them."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

batch_size = 8
data = TensorDataset(torch.randint(0, 20, (37,)))
loader = DataLoader(data, batch_size=batch_size, shuffle=True)
model = nn.Sequential(nn.Embedding(20, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for (users,) in loader:
    e = model(users)
    fit = (e.sum(1) - 1).pow(2).mean()
    norm = torch.norm(e)
    penalty = {penalty}
    loss = fit + 0.1 * penalty
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
SUMS = [
    "torch.norm(e) ** 2",
    "norm ** 2",
    "norm * norm",
    "e.norm().pow(2)",
    "e.norm(2).pow(2)",
    "torch.norm(e, p=2) ** 2",
    "torch.norm(e, p='fro') ** 2",
    "torch.square(e.norm())",
    "torch.linalg.norm(e) ** 2",
    "torch.linalg.vector_norm(e, ord=3) ** 3",
    "torch.norm(e, p=3) ** 3",
    "torch.norm(e, p=1)",
    "(e.norm() ** 2 + (2 * e).norm() ** 2) / 2",
]
COUPLED = [
    "norm",
    "norm ** 4",
    "torch.norm(e, p=3) ** 2",
    "torch.linalg.vector_norm(e)",
    "torch.linalg.norm(e, 2) ** 2",  # the largest singular value
    "torch.dist(e, torch.zeros_like(e))",
    "torch.std_mean(e)[0]",
    "torch.var_mean(e, dim=0)[0].mean()",
    "e.median()",
    "e.nanmedian()",
    "e.mode(0).values.mean()",
    "torch.quantile(e, 0.5)",
    "torch.quantile(e, 0.5, dim=0).mean()",
    "torch.aminmax(e).max",
    "torch.trapezoid(e, dim=0).mean()",
    "torch.fft.fft(e, dim=0).abs().mean()",
]
PER_SAMPLE = [
    "torch.norm(e, dim=1).pow(2).mean()",
    "e.norm(2, 1).mean()",
    "torch.linalg.vector_norm(e, dim=1).mean()",
    "e.median(1).values.mean()",
    "torch.quantile(e, 0.5, dim=1).mean()",
    "e.kthvalue(2).values.mean()",
    "torch.std_mean(e, dim=1)[0].mean()",
    "torch.fft.rfft(e).abs().mean()",
]


def planned(folder: Path, penalty: str) -> tuple[str, list[str]]:
    """Return the converted text, and what is said of samples that a loss couples."""
    result = conversion(folder, SCRIPT.format(penalty=penalty))
    (text,) = (file.text for file in result.files)
    assert not result.refusals
    return text, [place.message for place in result.findings if "couples the samples" in place.message]


@pytest.mark.parametrize("penalty", SUMS)
def test_a_norm_to_its_own_power_is_a_sum(tmp_path: Path, penalty: str) -> None:
    text, said = planned(tmp_path, f"({penalty}) / batch_size")
    assert f"({penalty}) / rd.loss.rank_share(rd.loss.global_batch(batch_size))" in text
    assert not said


@pytest.mark.parametrize("penalty", SUMS)
def test_of_a_sum_over_all_its_entries_the_mean_stays(tmp_path: Path, penalty: str) -> None:
    text, said = planned(tmp_path, f"({penalty}) / len(users)")
    assert f"    penalty = ({penalty}) / len(users)\n" in text
    assert not said


@pytest.mark.parametrize("penalty", COUPLED)
def test_what_couples_the_samples_is_listed(tmp_path: Path, penalty: str) -> None:
    _, said = planned(tmp_path, penalty)
    assert said


@pytest.mark.parametrize("penalty", PER_SAMPLE)
def test_what_is_computed_for_each_sample_stays(tmp_path: Path, penalty: str) -> None:
    text, said = planned(tmp_path, penalty)
    assert f"    penalty = {penalty}\n" in text
    assert not said
