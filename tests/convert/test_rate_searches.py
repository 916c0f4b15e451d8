"""Searches for a learning rate by a range test: all ranks see the losses of the whole batch, and find one rate."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

HEAD = """\
import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch_lr_finder import LRFinder

"""
TRAINING = """
loader = DataLoader(TensorDataset(torch.randn(96, 5), torch.randn(96, 3)), batch_size=8, shuffle=True)
model = nn.Linear(5, 3)
criterion = nn.MSELoss()
{search}
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
for x, y in loader:
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
"""
OWN = """
def range_test(model, criterion, loader, lr=1e-6, factor=2.0):
    saved = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    average, best, losses, rates = 0.0, float("inf"), [], []
    for number, (x, y) in enumerate(loader, 1):
        optimizer.param_groups[0]["lr"] = lr
        optimizer.zero_grad()
        loss = criterion(model(x), y)
{smooth}
        if number > 1 and smooth > 4 * best:
            break
        best = min(best, smooth)
        losses.append(smooth)
        rates.append(lr)
        loss.backward()
        optimizer.step()
        lr *= factor
    model.load_state_dict(saved)
    return rates[losses.index(min(losses))] / 10

"""
SMOOTHED = {
    "average": """\
        average = 0.98 * average + 0.02 * loss.item()
        smooth = average / (1 - 0.98**number)""",
    "by_steps": """\
        value = loss.item()
        smooth = 0.9 * average + 0.1 * value
        average = smooth""",
    "tensor": """\
        average = 0.98 * average + 0.02 * loss.detach().item()
        smooth = average""",
}
LIBRARY = """\
first = torch.optim.SGD(model.parameters(), lr=1e-6)
finder = LRFinder(model, first, criterion, device="cpu")
finder.range_test(loader, end_lr=1, num_iter=20)
lr = {rate}
finder.reset()"""
RATES = ['finder.history["lr"][3] / 10', "finder.plot(suggest_lr=True)[1]", "min(finder.history['lr'])"]


@pytest.mark.parametrize("smooth", SMOOTHED.values(), ids=SMOOTHED)
def test_the_loss_by_which_an_own_range_test_ends_is_that_of_all_ranks(tmp_path: Path, smooth: str) -> None:
    search = TRAINING.format(search="lr = range_test(model, criterion, loader)")
    text = "\n".join(converted(tmp_path, HEAD + OWN.format(smooth=smooth) + search))
    assert text.count("rd.reduce_loss(") == 1 and "one_process_only" not in text
    assert text.index("rd.reduce_loss(") < text.index("if number > 1")


@pytest.mark.parametrize("rate", RATES)
def test_a_library_finder_gets_the_loss_of_all_ranks_and_its_rate_stays(tmp_path: Path, rate: str) -> None:
    text = "\n".join(converted(tmp_path, HEAD + TRAINING.format(search=LIBRARY.format(rate=rate))))
    assert 'LRFinder(model, first, rd.search.whole_batch_value(criterion), device="cpu")' in text
    assert "torch.optim.SGD(model.parameters(), lr=lr)" in text


@pytest.mark.parametrize(
    ("former", "new"),
    [
        ("finder = LRFinder(model, ", "copied = copy.deepcopy(model)\nfinder = LRFinder(copied, "),
        ("range_test(loader", "range_test(DataLoader(loader.dataset, 4)"),
    ],
)
def test_another_model_or_loader_is_refused(tmp_path: Path, former: str, new: str) -> None:
    search = LIBRARY.format(rate=RATES[0])
    assert former in search
    plan = conversion(tmp_path, HEAD + TRAINING.format(search=search.replace(former, new)))
    assert [finding.kind for finding in plan.refusals] == ["rate-search"]


def test_a_criterion_that_sums_over_the_samples_is_refused(tmp_path: Path) -> None:
    text = HEAD + TRAINING.format(search=LIBRARY.format(rate=RATES[0]))
    assert "criterion = nn.MSELoss()" in text
    plan = conversion(tmp_path, text.replace("nn.MSELoss()", 'nn.MSELoss(reduction="sum")'))
    assert [finding.kind for finding in plan.refusals] == ["rate-search"]
