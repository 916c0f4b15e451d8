"""What a call gives next to a loss, such as pictures of samples, is not the loss and is not averaged over the ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Trainer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 6)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def forward(self, x, y):
        made = self.net(x)
        first, second = F.mse_loss(made, y), F.l1_loss(made, y)
        RETURN


def picture(tensor):
    return tensor.cpu().float().numpy()


torch.manual_seed(0)
x = torch.randn(32, 6)
trainer = nn.DataParallel(Trainer())
for x, y in DataLoader(TensorDataset(x, x.flip(1)), batch_size=8):
    TAKE
    trainer.module.optimizer.zero_grad()
    loss.backward()
    trainer.module.optimizer.step()
    np.savetxt("picture.txt", picture(SHOWN.data[0]))
    print(loss.item())
"""
FORMS = {
    "a list of losses": (
        "return [[first, second], made]", "losses, made = trainer(x, y)\n    loss = sum(losses)", "made",
    ),
    "a place": ("return made, first + second", "out = trainer(x, y)\n    loss = out[1]", "out[0]"),
    "keys": (
        "return {'loss': first + second, 'made': made}", "out = trainer(x, y)\n    loss = out['loss']", "out['made']",
    ),
    "inside": ("return first + second, (made, y)", "loss, shown = trainer(x, y)", "shown[0]"),
    "got": (
        "return dict(a=first, b=second), made",
        "terms, made = trainer(x, y)\n    loss = terms['a'] + terms.get('b', 0)",
        "made",
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_it_is_listed(form: str, tmp_path: Path) -> None:
    returned, taken, shown = FORMS[form]
    text = SCRIPT.replace("RETURN", returned).replace("TAKE", taken).replace("SHOWN", shown)
    result = conversion(tmp_path, text)
    converted = next(file.text for file in result.files if file.path.name == "train.py")
    assert not result.refusals
    assert f"picture({shown}.data[0])" in converted and "print(rd.reduce_loss(loss).item())" in converted
    assert [finding.message.split(",")[0] for finding in result.listed] == [f"rank 0's share: picture({shown}.data[0])"]
