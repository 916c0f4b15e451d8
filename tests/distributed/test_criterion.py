"""Cross entropy over the batch of all ranks: the training of one process, however many labels each rank has."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import retrofit.distributed as rd

WEIGHT = torch.tensor([1.0, 0.2, 3.0, 1.0], dtype=torch.float64)
CRITERIA = {
    "ignored": nn.CrossEntropyLoss(ignore_index=3),
    "classes weighed": nn.CrossEntropyLoss(weight=WEIGHT, ignore_index=3),
    "smooth": nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.1),
    "log probabilities": nn.NLLLoss(ignore_index=3),
    "function": F.cross_entropy,
    "partial": partial(F.cross_entropy, ignore_index=3, weight=WEIGHT),
    "probabilities": nn.CrossEntropyLoss(weight=WEIGHT),
}


def train(kind, number):
    """Return the loss that is shown and all parameters after each step of an epoch of `number` images."""
    torch.manual_seed(0)
    rd.options._values.update(batch="global")
    labels = torch.randint(0, 4, (number, 3))
    labels[: number // 2, 1:] = 3  # ignored
    images = torch.randn(number, 2, 3, dtype=torch.float64)
    target = F.one_hot(labels, 4).transpose(1, 2).double() if kind == "probabilities" else labels
    loader = rd.distribute_loader(DataLoader(TensorDataset(images, target), 6))
    layers = [nn.Conv1d(2, 4, 1), *([nn.LogSoftmax(1)] if kind == "log probabilities" else [])]
    model = rd.distribute_model(nn.Sequential(*layers).double())
    criterion = rd.loss.distribute_criterion(CRITERIA[kind])
    options = {"ignore_index": 3} if kind == "function" else {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    steps = []
    for image, label in loader:
        loss = criterion(model(image), label, **options)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        parameters = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        steps.append([rd.reduce_loss(loss).item(), *parameters.tolist()])
    rd.options._values.clear()
    return steps


@pytest.mark.parametrize("kind", CRITERIA)
@pytest.mark.parametrize("number", [12, 13, 17])
def test_the_training_is_that_of_one_process(ranks, kind, number):
    alone = train(kind, number)
    for steps in ranks(3).run(train, kind, number):
        assert len(steps) == len(alone)
        for step, expected in zip(steps, alone):
            assert step == pytest.approx(expected, rel=1e-11, abs=1e-12)


def without_gradients():
    criterion = rd.loss.distribute_criterion(nn.CrossEntropyLoss(ignore_index=3))
    output, target = torch.randn(2, 4), torch.tensor([rd.get_rank(), 3])
    if rd.get_rank() == 0:  # no rank waits for another one
        assert torch.equal(criterion(output, target), F.cross_entropy(output, target, ignore_index=3))
        with torch.no_grad():
            criterion(nn.Linear(4, 4)(output), target)
    return criterion.ignore_index, criterion.reduction, type(criterion.to("cpu")).__name__


def test_an_evaluation_uses_its_own_batch_alone(ranks):
    assert ranks(2).run(without_gradients) == [(3, "mean", "WholeBatchLoss")] * 2


def of_a_wrapped_function():
    """A library may have put a function of its own in front of torch's, which takes anything."""

    def cross_entropy(*args, **kwargs):
        return F.cross_entropy(*args, **kwargs)

    weight = torch.tensor([1.0, 2.0, 3.0, 4.0])
    output, target = torch.randn(2, 4, requires_grad=True), torch.tensor([rd.get_rank(), 3])
    given = rd.loss.distribute_criterion(cross_entropy)(output, target, weight, None, 3)
    return given.item(), rd.loss.distribute_criterion(F.cross_entropy)(output, target, weight, ignore_index=3).item()


def test_positional_options_are_those_of_torch(ranks):
    for given, expected in ranks(2).run(of_a_wrapped_function):
        assert given == expected


def other_criteria():
    others = [
        nn.KLDivLoss(),
        nn.CrossEntropyLoss(reduction="sum"),
        partial(F.cross_entropy, reduction="none"),
        nn.MSELoss(reduction="none"),
        F.triplet_margin_loss,
    ]
    assert [rd.loss.distribute_criterion(criterion) for criterion in others] == others
    output, target = torch.randn(2, 4, requires_grad=True), torch.tensor([rd.get_rank(), 3])
    for options in ({"reduction": "sum"}, {"reduction": "none"}, {"size_average": False}):
        losses = rd.loss.distribute_criterion(F.cross_entropy)(output, target, **options)
        assert torch.equal(losses, F.cross_entropy(output, target, **options))


@pytest.mark.filterwarnings("ignore:size_average")
def test_a_loss_of_another_kind_is_unchanged(ranks):
    ranks(2).run(other_criteria)


def test_one_process_is_unchanged():
    criterion = nn.CrossEntropyLoss()
    assert rd.loss.distribute_criterion(criterion) is criterion
