"""A number of batches that is taken before a training, and divides what a pass over all samples adds up."""

from __future__ import annotations

from pathlib import Path

from convert.conversion import conversion, converted

TRAINING = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(16, 3), torch.randn(16, 1)), batch_size=4)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    batches = len(loader)
    running = 0.0
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running += loss.item()
    TRAINED
    model.eval()
    total = 0.0
    with torch.no_grad():
        for x, y in loader:
            total += F.mse_loss(model(x), y).item()
    print(total / batches)
"""
DRAWN = """\
import torch
import torch.nn.functional as F
from torch import nn

settings = {"batch_size": 4, "log": 4}
data, targets = torch.randn(16, 3), torch.randn(16, 1)


def parts(*tensors, **options):
    size = options.get("batch_size", settings["batch_size"])
    for i in range(0, len(tensors[0]), size):
        yield tuple(tensor[i : i + size] for tensor in tensors)


model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    count = len(data) // settings["KEY"] + 1
    total = 0.0
    for x, y in parts(data, targets):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(total / count)
"""


def test_a_length_for_the_pass_alone_is_that_of_all_batches(tmp_path: Path) -> None:
    assert "batches = len(rd.evaluation.same_batches(loader))" in converted(
        tmp_path, TRAINING.replace("TRAINED", "pass")
    )


def test_a_length_for_the_training_and_the_pass_is_left_to_the_user(tmp_path: Path) -> None:
    result = conversion(tmp_path, TRAINING.replace("TRAINED", "print(running / batches)"))
    assert "batches = len(loader)" in result.files[0].text
    (finding,) = (f for f in result.findings if f.code == "RF114" and not f.edits)
    assert "its length that of the training" in finding.message


def test_a_length_that_a_function_reads_too_stays_as_it_is(tmp_path: Path) -> None:
    loop = "for epoch in range(2):\n"
    text = TRAINING.replace(f"{loop}    batches = len(loader)\n", f"batches = len(loader)\n{loop}")
    factor = "def factor(step):\n    return 1 - step / (2 * batches)\n\n\nloader ="
    result = conversion(tmp_path, text.replace("loader =", factor, 1).replace("TRAINED", "print(factor(epoch))"))
    assert "batches = len(loader)" in result.files[0].text


def test_steps_by_a_batch_size_that_is_not_found_are_listed(tmp_path: Path) -> None:
    result = conversion(tmp_path, DRAWN.replace("KEY", "batch_size"))
    assert any("can be the number of steps of one process" in finding.message for finding in result.listed)


def test_samples_divided_by_something_else_are_not_listed(tmp_path: Path) -> None:
    result = conversion(tmp_path, DRAWN.replace("KEY", "log"))
    assert not any("number of steps of one process" in finding.message for finding in result.listed)
