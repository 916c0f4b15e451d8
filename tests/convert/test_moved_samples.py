"""Statistics over the batch where the samples are not in the first axis, or are taken apart and put together again."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=8)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in loader:
    out = model(x)
    loss = LOSS
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
MEANS = {
    "second": "out.unflatten(0, (1, -1)).mean(1)",
    "stacked in the second axis": "torch.stack(out.unbind(0), 1).mean(1)",
    "rows taken by their number": "torch.stack([out[i] for i in range(len(out))], 1).mean(1)",
}
COUPLED = {
    "halves": "out.unflatten(0, (2, -1)).mean(1).pow(2).sum()",
    "a matrix on its side": "out.mT.std(1).mean()",
    "mapped columns": "torch.stack(list(map(torch.mean, out.t()))).pow(2).sum()",
    "a function of mapped columns": "torch.stack(list(map(lambda c: c.var(), out.t()))).mean()",
    "mapped parts": "torch.stack(list(map(torch.var, out.unbind(1)))).mean()",
    "vectorised over columns": "torch.vmap(torch.mean)(out.t()).pow(2).sum()",
    "vectorised over the other axis": "torch.vmap(torch.var, in_dims=1)(out).mean()",
}
OF_SAMPLES = {
    "columns put together": "torch.stack([c.pow(2) for c in out.unbind(1)], 1).mean()",
    "rows of rows": "torch.vmap(torch.var)(out).mean()",
    "mapped rows": "torch.stack(list(map(torch.var, out))).mean()",
    "groups of columns": "out.unflatten(1, (1, -1)).mean(1).mean()",
}


@pytest.mark.parametrize("form", MEANS)
def test_a_mean_is_that_of_all_ranks(tmp_path: Path, form: str) -> None:
    lines = converted(tmp_path, SCRIPT.replace("LOSS", f"{MEANS[form]}.pow(2).sum()"))
    assert f"loss = rd.loss.batch_mean({MEANS[form]}).pow(2).sum()" in lines


@pytest.mark.parametrize("form", COUPLED)
def test_other_statistics_are_of_the_rows_of_all_ranks(tmp_path: Path, form: str) -> None:
    lines = converted(tmp_path, SCRIPT.replace("LOSS", COUPLED[form]))
    assert "out = rd.loss.batch_rows(model(x))" in lines and f"loss = {COUPLED[form]}" in lines


def test_statistics_of_columns_one_by_one_are_not_passed_over(tmp_path: Path) -> None:
    result = conversion(tmp_path, SCRIPT.replace("LOSS", "torch.stack([c.var() for c in out.T]).mean()"))
    assert result.refusals or any(f.code == "RF309" and not f.edits for f in result.findings)


@pytest.mark.parametrize("form", OF_SAMPLES)
def test_what_is_of_each_sample_stays(tmp_path: Path, form: str) -> None:
    lines = converted(tmp_path, SCRIPT.replace("LOSS", OF_SAMPLES[form]))
    assert f"loss = {OF_SAMPLES[form]}" in lines and "rd.loss." not in "".join(lines).replace("reduce_loss", "")


PRODUCTS = [
    'torch.einsum("bi,bj->ij", z, z)',
    "torch.tensordot(z, z, dims=([0], [0]))",
    "torch.bmm(z.t().unsqueeze(0), z.unsqueeze(0))[0]",
    "z.t().mm(z)",
]


@pytest.mark.parametrize("product", PRODUCTS)
def test_what_is_computed_from_the_rows_of_all_ranks_is_not_added_up_over_them(tmp_path: Path, product: str) -> None:
    script = SCRIPT.replace(
        "    loss = LOSS", f"    z = out / out.std(0)\n    c = {product} / len(x)\n    loss = c.pow(2).sum()"
    )
    lines = converted(tmp_path, script)
    assert "out = rd.loss.batch_rows(model(x))" in lines and f"c = {product} / rd.loss.batch_count(len(x))" in lines
    assert "loss.backward()" in lines and "loss = c.pow(2).sum()" in lines
