"""Models that a training runs through methods and layers of their own: the training of one process."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import retrofit.distributed as rd


class Coder(nn.Module):
    """Has a parameter outside its layers, BatchNorm, a layer in a container, and a part that only `forward` runs."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.encoder = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh())
        self.decoder = nn.Linear(4, 3)
        self.heads = nn.ModuleDict({"main": nn.Linear(4, 2)})
        self.extra = nn.Linear(3, 3)

    def encode(self, x):
        return self.encoder(x) * self.scale

    def decode(self, z):
        return self.decoder(z) / self.scale

    def forward(self, x):
        return self.decode(self.encode(x)) + self.extra(x)

    def loss(self, x, y):
        return F.mse_loss(self(x), x) + F.cross_entropy(self.heads["main"](self.encode(x)), y)

    def penalty(self):
        return self.scale.square() + self.decoder.weight.square().sum()

    def update(self, x, y, step):
        """Return a loss as a method that calls backward itself would: of itself and of its own layers."""
        z = self.encoder(x)
        own = F.mse_loss(self.decoder(z), x) + self.scale.square()
        return own if step % 3 == 2 else own + F.mse_loss(self(x), x) + F.cross_entropy(self.heads["main"](z), y)


METHODS = ("encode", "decode", "loss", "heads", "encoder")
ITSELF = ("forward", "encoder", "decoder", "heads")


def of_batch(model, x, y, kind, step):
    if kind == "methods":
        return F.mse_loss(model.decode(model.encode(x)), x)
    if kind == "layers":
        return F.cross_entropy(model.heads["main"](model.encoder(x)), y)
    if kind == "method and layer":
        z = model.encode(x)
        return F.cross_entropy(model.heads["main"](z), y) + (F.mse_loss(model.decode(z), x) if step % 5 else 0)
    if kind == "itself":
        return model.update(x, y, step)
    if kind == "loss":
        return model.loss(x, y) + 1e-3 * model.penalty()
    return F.mse_loss(model(x), x) + F.cross_entropy(model.heads["main"](model.encode(x).detach()), y)


def train(kind, number=41):
    """Return the loss that is shown and all parameters after each step of 5 epochs of `number` samples."""
    torch.manual_seed(0)
    rd.options._values.update(batch="global")
    data = TensorDataset(torch.randn(number, 3).double(), torch.randint(0, 2, (number,)))
    loader = rd.distribute_loader(DataLoader(data, 6))
    model = rd.distribute_model(Coder().double(), methods=ITSELF if kind == "itself" else METHODS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = []
    for _ in range(5):
        for step, (x, y) in enumerate(loader):
            loss = of_batch(model, x, y, kind, step)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            shown = rd.reduce_loss(loss).item()
            steps.append([shown, *torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()])
    rd.options._values.clear()
    return steps


@pytest.mark.parametrize("kind", ["methods", "layers", "method and layer", "loss", "call and method", "itself"])
@pytest.mark.parametrize("world_size", [2, 3])
def test_the_training_is_that_of_one_process(ranks, world_size, kind):
    alone = train(kind)
    for steps in ranks(world_size).run(train, kind):
        assert len(steps) == len(alone)
        for step, expected in zip(steps, alone):
            assert step == pytest.approx(expected, rel=1e-9, abs=1e-9)


def copies():
    model = rd.distribute_model(Coder(), methods=METHODS)
    x = torch.ones(4, 3)
    model.encode(x)
    copied, loaded = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    with torch.no_grad():
        expected = model.eval().heads["main"](model.encode(x))
        same = [bool((m.eval().heads["main"](m.encode(x)) == expected).all()) for m in (copied, loaded)]
    copied.train().heads["main"](copied.encode(x)).sum().backward()  # its gradients are its own
    return [type(m) is Coder for m in (copied, loaded)], same, "forward" in model.module.__dict__


def test_copies_and_files_hold_the_module_alone(ranks):
    assert ranks(2).run(copies) == [([True, True], [True, True], False)] * 2


def unknown_method():
    with pytest.raises(ValueError, match="Coder has no method or layer 'decide'"):
        rd.distribute_model(Coder(), methods=["decide"])


def test_a_method_that_the_model_lacks_is_an_error(ranks):
    ranks(2).run(unknown_method)
