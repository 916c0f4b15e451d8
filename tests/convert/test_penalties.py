"""Terms of the weights that a script divides by the samples of a batch: (likelihood + divergence) / len(x)."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted

SCRIPT = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.utils.data import DataLoader, TensorDataset

SIZE = 8


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.spread = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.zeros(3, 4))

    def forward(self, x):
        return F.linear(x, self.mean)

    def divergence(self):
        return kl_divergence(Normal(self.mean, F.softplus(self.spread)), Normal(0.0, 1.0)).sum()


x, y = torch.randn(16, 4), torch.randint(0, 3, (16,))
SAMPLES, ROWS = len(x), x.shape[0]
loader = DataLoader(TensorDataset(x, y), batch_size=8)
model = Layer()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    out = model(x)
    total = F.cross_entropy(out, y, reduction="sum")
    term = TERM
    loss = LOSS
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
TERMS = [
    "model.divergence()",
    "sum(p.square().sum() for p in model.parameters())",
    "model.mean.abs().sum() / len(loader)",
]
LOSSES = {
    "(total + term) / x.size(0)": "(total + rd.loss.rank_share(term)) / x.size(0)",
    "F.cross_entropy(out, y) + term / len(x)": "F.cross_entropy(out, y) + rd.loss.rank_share(term) / len(x)",
    "total / len(y) + 0.5 * term / len(y)": "total / len(y) + rd.loss.rank_share(0.5 * term) / len(y)",
    "(total + term).div(y.shape[0])": "(total + rd.loss.rank_share(term)).div(y.shape[0])",
    "(total + term) / SIZE": "(total + rd.loss.rank_share(term)) / rd.loss.rank_share(rd.loss.global_batch(SIZE))",
}
# Divided by what all processes have, or next to a mean that is divided as well.
SAME = {
    "F.cross_entropy(out, y) + term / len(loader)": "F.cross_entropy(out, y) + term / len(loader)",
    "F.cross_entropy(out, y) + term / 100": "F.cross_entropy(out, y) + term / 100",
    "total + term": "rd.loss.sum_loss(total) + term",
    "(F.cross_entropy(out, y) + term) / len(x)": "(F.cross_entropy(out, y) + term) / rd.loss.batch_count(len(x))",
}


def script(term: str, loss: str) -> str:
    return SCRIPT.replace("TERM", term).replace("LOSS", loss)


@pytest.mark.parametrize("term", TERMS)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_term_of_the_weights_counts_once_for_all_samples(tmp_path: Path, term: str, loss: str) -> None:
    lines = converted(tmp_path, script(term, loss))
    assert f"loss = {LOSSES[loss]}" in lines and f"term = {term}" in lines


@pytest.mark.parametrize("loss", SAME)
def test_other_terms_of_the_weights_stay(tmp_path: Path, loss: str) -> None:
    lines = converted(tmp_path, script(TERMS[1], loss))
    assert f"loss = {SAME[loss]}" in lines


def test_a_quotient_set_again(tmp_path: Path) -> None:
    lines = converted(tmp_path, script(TERMS[1], "total + term\n    loss /= len(x)"))
    assert "loss = total + rd.loss.rank_share(term)" in lines and "loss /= len(x)" in lines


@pytest.mark.parametrize("number", ["len(loader)", "len(loader.dataset)", "SAMPLES", "ROWS"])
def test_what_is_made_before_the_loop_is_not_of_the_batch_under_the_same_name(tmp_path: Path, number: str) -> None:
    """`x` and `y` are the data, from which the loader is made, and the batches of the loop."""
    assert f"loss = total / {number}" in converted(tmp_path, script("0", f"total / {number}"))
    assert "rd.loss.sum_loss(loss).backward()" in converted(tmp_path, script("0", f"total / {number}"))
