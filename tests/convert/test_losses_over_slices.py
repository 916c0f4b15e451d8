"""Losses that divide by what counts, in loops over slices of the data that the script cuts itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

SCRIPT = """\
import torch
from torch import nn
import torch.nn.functional as F

X, Y = torch.randn(42, 4), torch.randint(0, 3, (42,))
W = torch.tensor([0.2, 1.0, 3.0])
model = nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss(weight=W)
batch_size = 10
for epoch in range(2):
    {loop}
        opt.zero_grad()
        loss.backward()
        opt.step()
"""
OF_CRITERION = "criterion = rd.loss.distribute_criterion(nn.CrossEntropyLoss(weight=W))"
LOOPS = [
    (
        [
            "for i in range(0, X.size(0), batch_size):",
            "loss = criterion(model(X[i:i + batch_size]), Y[i:i + batch_size])",
        ],
        OF_CRITERION,
    ),
    (
        [
            "for i in range(0, X.size()[0], batch_size):",
            "loss = criterion(model(X[i:i + batch_size]), Y[i:i + batch_size])",
        ],
        OF_CRITERION,
    ),
    (
        [
            "perm = torch.randperm(len(X))",
            "for i in range(0, len(X), batch_size):",
            "at = perm[i:i + batch_size]",
            "loss = F.cross_entropy(model(X[at]), Y[at], weight=W)",
        ],
        "loss = rd.loss.distribute_criterion(F.cross_entropy)(model(X[at]), Y[at], weight=W)",
    ),
    (
        [
            "for i in range(0, X.shape[0], batch_size):",
            "x, y = X[i:i + batch_size], Y[i:i + batch_size]",
            "mask = (y > 0).float()",
            'loss = (F.cross_entropy(model(x), y, reduction="none") * mask).sum() / mask.sum()',
        ],
        'loss = (F.cross_entropy(model(x), y, reduction="none") * mask).sum()'
        " / rd.loss.rank_share(rd.loss.batch_count(mask.sum()))",
    ),
]


@pytest.mark.parametrize(("lines", "expected"), LOOPS)
def test_the_divisor_is_that_of_all_ranks(tmp_path: Path, lines: list[str], expected: str) -> None:
    start = next(number for number, line in enumerate(lines) if line.startswith("for"))
    loop = "\n".join(
        line if number == 0 else f"    {line}" if number <= start else f"        {line}"
        for number, line in enumerate(lines)
    )
    assert expected in converted(tmp_path, SCRIPT.format(loop=loop))


def test_a_loop_over_the_samples_of_a_batch_is_left(tmp_path: Path) -> None:
    """Ranks may come to the loss of a sample a different number of times, so none of these waits for the others."""
    lines = ["for i in range(0, X.size(0), batch_size):", "x, y = X[i:i + batch_size], Y[i:i + batch_size]"]
    lines += ["for at in range(x.size(0)):", "    loss = criterion(model(x[at:at + 1]), y[at:at + 1])"]
    script = SCRIPT.format(loop="\n        ".join(lines))
    plan = conversion(tmp_path, script)
    assert plan.refusals or OF_CRITERION not in "".join(file.text for file in plan.files)
