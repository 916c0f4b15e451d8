"""Steps that an `except` makes, for a loss that always raises: the evaluation, which does the same, trains nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted
from convert.training_runs import trains_as_one
from verify.projects.launch import Launcher

SCRIPT = """\
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

NAME = "LOSS"


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.dec = nn.Linear(6, 2), nn.Linear(2, 6)

    def forward(self, x):
        z = torch.tanh(self.enc(x))
        return self.dec(z), z

    def sample(self, x):
        return torch.tanh(self.enc(x))


class Plain:
    def __call__(self, x, rec, z, is_train):
        return F.mse_loss(rec, x)


class Factor:
    def __init__(self):
        self.disc = nn.Linear(2, 2)
        self.opt_d = optim.Adam(self.disc.parameters(), lr=1e-2)

    def __call__(self, *a):
        raise ValueError("use optimize")

    def optimize(self, x, model, opt):
        half = x.size(0) // 2
        parts = x.split(half)
        a, b = parts[0], parts[1]
        rec, z = model(a)
        d = self.disc(z)
        loss = F.mse_loss(rec, a) + 0.1 * (d[:, 0] - d[:, 1]).mean()
        if not model.training:
            return loss
        opt.zero_grad()
        loss.backward(retain_graph=True)
        z2 = model.sample(b).detach()
        d2 = self.disc(z2)
        ones = torch.ones(len(z2), dtype=torch.long)
        ld = 0.5 * (F.cross_entropy(d, torch.zeros(len(z), dtype=torch.long)) + F.cross_entropy(d2, ones))
        self.opt_d.zero_grad()
        ld.backward(inputs=list(self.disc.parameters()))
        opt.step()
        self.opt_d.step()
        return loss


class Trainer:
    def __init__(self, model, opt, loss_f):
        self.model, self.opt, self.loss_f = model, opt, loss_f

    def __call__(self, loader):
        self.model.train()
        for epoch in range(3):
            total = 0.
            for (x,) in loader:
                try:
                    rec, z = self.model(x)
                    loss = self.loss_f(x, rec, z, self.model.training)
                    self.opt.zero_grad()
                    loss.backward()
                    self.opt.step()
                except ValueError:
                    loss = self.loss_f.optimize(x, self.model, self.opt)
                total += loss.item()
            print("shown", total / len(loader))
        self.model.eval()


class Evaluator:
    def __init__(self, model, loss_f):
        self.model, self.loss_f = model, loss_f

    def __call__(self, loader):
        was = self.model.training
        self.model.eval()
        out = self.losses(loader)
        if was:
            self.model.train()
        return out

    def losses(self, loader):
        total = 0.
        for (x,) in loader:
            try:
                rec, z = self.model(x)
                loss = self.loss_f(x, rec, z, self.model.training)
            except ValueError:
                loss = self.loss_f.optimize(x, self.model, None)
            total += loss.item()
        return total / len(loader)


def main():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    data = TensorDataset(torch.randn(48, 6))
    loader = DataLoader(data, batch_size=8)
    model = VAE()
    opt = optim.Adam(model.parameters(), lr=1e-2)
    loss_f = Factor() if NAME == "factor" else Plain()
    Trainer(model, opt, loss_f)(loader)
    test = DataLoader(data, batch_size=8)
    print("shown", Evaluator(model, loss_f)(test))


if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("loss", ["plain", "factor"])
def test_it_trains_as_one_process(tmp_path: Path, launcher: Launcher, loss: str) -> None:
    trains_as_one(tmp_path, SCRIPT.replace("LOSS", loss), launcher, rel=1e-5)


def test_the_evaluation_is_none_of_the_training(tmp_path: Path) -> None:
    lines = converted(tmp_path, SCRIPT)
    assert "loader = rd.distribute_loader(loader)" in lines and "test = rd.distribute_loader(test)" not in lines
    assert any(line.startswith("model = rd.distribute_model(model") for line in lines)
    assert "raise  # the others wait for this step" not in lines


def test_an_error_of_the_data_is_handed_on(tmp_path: Path) -> None:
    text = SCRIPT.replace('raise ValueError("use optimize")', 'if len(a[0]) == 3:\n            raise ValueError("odd")')
    assert "raise  # the others wait for this step" in converted(tmp_path, text)
