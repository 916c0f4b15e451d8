"""Tensors that are made once, for the batch size, and filled from each batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

from retrofit.rules.refusals.help import patch_for

SCRIPT = """\
import numpy as np
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

size = 4
loader = DataLoader(TensorDataset(torch.randn(16, 3)), batch_size=size, shuffle=True)
model = nn.Linear(3, 3)
optimizer = optim.SGD(model.parameters(), lr=0.1)
{made}
for epoch in range(2):
    for (x,) in loader:
        {filled}
        optimizer.zero_grad()
        model(inputs).abs().mean().backward()
        optimizer.step()
"""
TENSOR, ARRAY = "inputs = torch.empty(size, 3)", "array = np.zeros((size, 3), dtype=np.float32)"
KEEPS_ROWS = {
    "resized view": (TENSOR, "inputs.data.resize_as_(x).copy_(x)"),
    "resized view of a variable": (
        "inputs = torch.autograd.Variable(torch.FloatTensor(size, 3))",
        "inputs.data.resize_(x.size()).copy_(x)",
    ),
    "resized noise": (TENSOR, "inputs.data.resize_(len(x), 3).normal_()"),
    "copied": (TENSOR, "inputs.copy_(x)"),
    "copied view": (TENSOR, "inputs.data.copy_(x)"),
    "first rows": (TENSOR, "inputs[:len(x)] = x"),
    "row by row": (TENSOR, "for n, row in enumerate(x): inputs[n] = row"),
    "output of a function": ("inputs = torch.empty(4, 3)", "torch.mul(x, 2, out=inputs)"),
    "array": (ARRAY, "array[:len(x)] = x.numpy(); inputs = torch.from_numpy(array)"),
    "output of numpy": (ARRAY, "np.multiply(x.numpy(), 2, out=array); inputs = torch.from_numpy(array)"),
}
OF_THE_BATCH = {
    "resized itself": (TENSOR, "inputs.resize_as_(x).copy_(x)"),
    "resized by a size": (TENSOR, "inputs.resize_(x.size()).copy_(x)"),
    "data set": (TENSOR, "inputs.data = x"),
    "made for each batch": ("", "inputs = torch.empty(len(x), 3); inputs.copy_(x)"),
    "made like the batch": ("", "inputs = torch.empty_like(x); torch.mul(x, 2, out=inputs)"),
}


@pytest.mark.parametrize("form", KEEPS_ROWS)
def test_a_tensor_that_can_keep_rows_of_another_batch_is_refused(tmp_path: Path, form: str) -> None:
    made, filled = KEEPS_ROWS[form]
    (refusal,) = conversion(tmp_path, SCRIPT.format(made=made, filled=filled)).refusals
    assert (refusal.code, refusal.kind) == ("RF210", "batch-buffer")


@pytest.mark.parametrize("form", OF_THE_BATCH)
def test_a_tensor_of_the_size_of_each_batch_is_converted(tmp_path: Path, form: str) -> None:
    made, filled = OF_THE_BATCH[form]
    assert not conversion(tmp_path, SCRIPT.format(made=made, filled=filled)).refusals


FULL = SCRIPT.replace("shuffle=True", "shuffle=True, drop_last=True")
VIEWS = {
    "tensor": (TENSOR, "inputs.data.resize_as_(x).copy_(x)", "inputs.resize_as_(x).copy_(x)"),
    "variable": (
        "inputs = torch.autograd.Variable(torch.FloatTensor(size, 3))",
        "inputs.data.resize_(x.size()).copy_(x)",
        "inputs.resize_(x.size()).copy_(x)",
    ),
    "noise": (
        "inputs = torch.zeros((size, 3))",
        "inputs.data.resize_(len(x), 3).normal_()",
        "inputs.resize_(len(x), 3).normal_()",
    ),
}


@pytest.mark.parametrize("form", VIEWS)
def test_a_view_of_a_tensor_for_whole_batches_is_not_resized_but_the_tensor(tmp_path: Path, form: str) -> None:
    made, filled, written = VIEWS[form]
    result = conversion(tmp_path, FULL.format(made=made, filled=filled))
    assert not result.refusals
    assert f"        {written}" in result.files[0].data.decode().splitlines()
    assert not [finding for finding in result.findings if finding.code == "RF112"]


NOT_FULL = {
    "last batch": (SCRIPT, TENSOR),
    "other rows": (FULL, "inputs = torch.empty(8, 3)"),
    "other loader": (FULL, TENSOR + "\nfor (x,) in DataLoader(loader.dataset, 3): inputs.data.resize_as_(x).copy_(x)"),
    "result is used": (FULL, TENSOR + "\nfor (x,) in loader: print(inputs.data.resize_as_(x))"),
}


@pytest.mark.parametrize("form", NOT_FULL)
def test_a_view_that_can_have_another_size_than_its_tensor_is_refused(tmp_path: Path, form: str) -> None:
    script, made = NOT_FULL[form]
    (refusal,) = conversion(tmp_path, script.format(made=made, filled="inputs.data.resize_as_(x).copy_(x)")).refusals
    assert (refusal.code, refusal.kind) == ("RF210", "batch-buffer")


SHOWN = """\
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

data = torch.randn(16, 3)
loader = DataLoader(TensorDataset(data, data), batch_size=4, shuffle=True)
model = nn.Linear(3, 3)
optimizer = optim.SGD(model.parameters(), lr=0.1)
{before}
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        {batch}
        (out - y).abs().mean().backward()
        optimizer.step()
    with torch.no_grad():
        {after}
"""
USED_AGAIN = {
    "output": ("", "out = model(x)", "out = model(data); x = torch.cat([data, out]); print(x)"),
    "pair": ("", "out, mask = model(x), x > 0", "out, mask = model(data), data; x = data * mask + out; print(x)"),
    "moved": ("", "x = x.float(); out = model(x)", "x = data.float(); out = model(x); x = out - x; print(x)"),
    "had a value": ("x = data; out = data", "out = model(x)", "x = out[:4] + 1; print(x)"),
}


@pytest.mark.parametrize("form", USED_AGAIN)
def test_a_variable_of_the_loop_that_is_used_again_after_it_keeps_nothing(tmp_path: Path, form: str) -> None:
    before, batch, after = USED_AGAIN[form]
    assert not conversion(tmp_path, SHOWN.format(before=before, batch=batch, after=after)).refusals


def test_an_output_that_the_next_batch_is_computed_from_is_refused(tmp_path: Path) -> None:
    script = SHOWN.format(before="out = data[:4]", batch="out = model(x + out.detach())", after="print(epoch)")
    (refusal,) = conversion(tmp_path, script).refusals
    assert (refusal.code, refusal.kind) == ("RF210", "carried-state")


def test_the_batch_itself_is_proposed_for_a_tensor_that_gets_all_of_it(tmp_path: Path) -> None:
    script = SCRIPT.format(made=TENSOR, filled="given = inputs.copy_(x)").replace("model(inputs)", "model(given)")
    refused = conversion(tmp_path, script)
    (refusal,) = refused.refusals
    assert "has the rows of the script's batch" in refusal.refusal
    (edit,) = patch_for(refused.project, refusal)
    assert edit.text == "x.to(inputs)"
    assert not conversion(tmp_path, script.replace("inputs.copy_(x)", edit.text)).refusals
