"""Losses over words: sequences of unequal lengths, packed, in an uneven last batch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import DataLoader, TensorDataset

import retrofit.distributed as rd

VOCABULARY = 5


class Tagger(nn.Module):
    """Gives the scores of all words: (samples, words, 5), flattened or of the words that are there."""

    def __init__(self, shape):
        super().__init__()
        self.shape, self.embed, self.scores = shape, nn.Embedding(VOCABULARY, 4), nn.Linear(4, VOCABULARY)

    def forward(self, words, lengths):
        out = self.scores(self.embed(words).cumsum(1).tanh())
        if self.shape == "packed":
            return pack_padded_sequence(out, lengths, batch_first=True, enforce_sorted=False)[0]
        return out.view(-1, VOCABULARY) if self.shape == "flat" else out


CRITERIA = {
    "packed": nn.CrossEntropyLoss(),
    "packed function": F.cross_entropy,
    "packed numbers": nn.MSELoss(),
    "packed outside": nn.CrossEntropyLoss(),
    "flat": nn.CrossEntropyLoss(ignore_index=0),
}


def train(kind, number):
    """Return the loss that is shown and all parameters after each step of an epoch of `number` sequences."""
    torch.manual_seed(0)
    rd.options._values.update(batch="global")
    words, targets = torch.randint(0, VOCABULARY, (2, number, 7))
    lengths = torch.randint(1, 8, (number,))
    loader = rd.distribute_loader(DataLoader(TensorDataset(words, targets, lengths), 6))
    shape = "flat" if kind == "flat" else "whole" if kind == "packed outside" else "packed"
    model = rd.distribute_model(Tagger(shape).double())
    criterion = rd.loss.distribute_criterion(CRITERIA[kind])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    steps = []
    for word, target, length in loader:
        output = model(word, length)
        if kind == "packed outside":
            output = pack_padded_sequence(output, length, batch_first=True, enforce_sorted=False)[0]
        if kind == "flat":
            target = target.view(-1)
        else:
            target = pack_padded_sequence(target, length, batch_first=True, enforce_sorted=False)[0]
        if kind == "packed numbers":
            target = F.one_hot(target, VOCABULARY).double()
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        parameters = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        steps.append([rd.reduce_loss(loss).item(), *parameters.tolist()])
    rd.options._values.clear()
    return steps


@pytest.mark.parametrize("kind", CRITERIA)
@pytest.mark.parametrize("number", [12, 13, 15, 17])
@pytest.mark.parametrize("world_size", [2, 3])
def test_the_training_is_that_of_one_process(ranks, kind, number, world_size):
    alone = train(kind, number)
    for steps in ranks(world_size).run(train, kind, number):
        assert len(steps) == len(alone)
        for step, expected in zip(steps, alone):
            assert step == pytest.approx(expected, rel=1e-11, abs=1e-12)
