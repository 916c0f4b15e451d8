"""The rate of the last epoch, kept in a variable, is shown as the optimizer has it."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Training:
    def __init__(self):
        torch.manual_seed(0)
        self.loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=8)
        self.model = nn.Linear(4, 1)
        self.old = 0.01
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def decay(self, old):
        lr = self.old * 0.9
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        LINES
        return lr

    def run(self):
        for epoch in range(3):
            for x, y in self.loader:
                loss = nn.functional.mse_loss(self.model(x), y)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            self.decay(epoch)


Training().run()
"""
SHOWN = {
    "an attribute": (["print(self.old, lr)", "self.old = lr"], "print(rd.scaled_lr(self.old), rd.scaled_lr(lr))"),
    "a copy": (["now = lr", "self.old = now", "print(now)"], "print(rd.scaled_lr(now))"),
    "in a text": (["print('%f -> %f' % (self.old, lr))", "self.old = lr"],
                  "print('%f -> %f' % (rd.scaled_lr(self.old), rd.scaled_lr(lr)))"),
    "read from the optimizer": (["now = lr", "now = self.optimizer.param_groups[0]['lr']", "print(now)"], "print(now)"),
    "an attribute that is read from it": (["self.old = lr", "self.old = group['lr']", "print(self.old)"],
                                          "print(self.old)"),
    "another argument": (["self.old = lr", "print(old)"], "print(old)"),
}  # fmt: skip


@pytest.mark.parametrize("name", SHOWN)
def test_a_kept_rate_is_shown_as_the_optimizer_has_it(name: str, tmp_path: Path) -> None:
    lines, expected = SHOWN[name]
    assert expected in converted(tmp_path, SCRIPT.replace("LINES", "\n        ".join(lines)))
