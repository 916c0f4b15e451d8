"""`retrofit verify` names numbers that a rank computes from its own samples, or draws, and that enter the loss."""

from __future__ import annotations

from pathlib import Path

import pytest
from further_cases import with_further
from verify_command import judge
from verify_plain_script import ARGUMENTS, OPTIONS, write_script

pytestmark = pytest.mark.usefixtures("forked_python")

LOSS = "            loss = criterion(model(x), y)\n"
CRITERION = "    criterion = nn.CrossEntropyLoss()\n"
LABELS = "    features[:, 0] += labels\n"
NET = "    net = nn.Sequential("
START = "    best, bad = 0.0, 0\n"
COUNTED = """\
    own = torch.arange(160)[rank::world]
    counts = torch.bincount(labels[own], minlength=3).float()
"""
OF_ALL = COUNTED.replace("[rank::world]", "")
POSITIVE = "    criterion = nn.BCEWithLogitsLoss(pos_weight=(len(own) - counts) / counts)\n"
BINARY = (LOSS, LOSS.replace("model(x), y", "model(x), F.one_hot(y, 3).float()"))
MARGIN = """\

    class Hinge(nn.Module):
        def __init__(self, margin):
            super().__init__()
            self.margin = margin

        def forward(self, out, y):
            return (self.margin - out.gather(1, y[:, None])).clamp(min=0).mean() + out.pow(2).mean()

    criterion = Hinge(features[own].abs().mean().item())
"""
CENTRED = """\

    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", features[own].mean(0))

        def forward(self, x):
            return x - self.mean

"""
FROM_LOADER = """\
    seen = torch.zeros(3)
    for _, y in loader:
        seen += torch.bincount(y, minlength=3)
    criterion = nn.CrossEntropyLoss(weight=seen.sum() / seen)
"""
HARD = """\
            each = F.cross_entropy(model(x), y, reduction="none")
            loss = (each * (each > hard)).mean()
"""
SPOILED = {
    "weights of positive samples": ([(CRITERION, COUNTED + POSITIVE), BINARY], "criterion.pos_weight", "RF401"),
    "weights of classes, counted by the own loader": ([(START, FROM_LOADER + START)], "criterion.weight", "RF401"),
    "a weight for each sample": (
        [
            (CRITERION, COUNTED + "    w = 1 / counts\n"),
            (LOSS, '            loss = (F.cross_entropy(model(x), y, reduction="none") * w[y]).mean()\n'),
        ],
        "w",
        "RF401",
    ),
    "mean and deviation of the inputs": (
        [
            (CRITERION, COUNTED + CRITERION + "    mean, std = features[own].mean(0), features[own].std(0)\n"),
            (LOSS, LOSS.replace("model(x)", "model((x - mean) / std)")),
        ],
        "mean",
        "RF401",
    ),
    "a temperature": (
        [
            (CRITERION, COUNTED + CRITERION + "    heat = features[own].std().item()\n"),
            (LOSS, LOSS.replace("model(x)", "model(x) / heat")),
        ],
        "heat",
        "RF401",
    ),
    "a number in a criterion": ([(CRITERION, COUNTED + MARGIN)], "self.margin", "RF401"),
    "a threshold from the epoch before": (
        [
            (START, START.replace("best, bad = 0.0, 0", "best, bad, hard = 0.0, 0, 0.0")),
            (LOSS, HARD),
            ("        train_loss = mean", "        hard = 0.5 * total / len(loader)\n        train_loss = mean"),
        ],
        "hard",
        "RF401",
    ),
    "a mean of rank 0's samples on all ranks": (
        [(LABELS, LABELS + COUNTED + CENTRED), (NET + "nn.Linear", NET + "Centred(), nn.Linear")],
        "self.mean",
        "RF401",
    ),
    "a basis that each rank draws": (
        [
            ("    sampler = Distr", "    basis = torch.randn(3, 3)\n    sampler = Distr"),
            (LOSS, LOSS.replace("model(x)", "model(x) @ basis")),
        ],
        "basis",
        "RF108",
    ),
    "numbers of classes in an order of each rank's own": (
        [
            (CRITERION, CRITERION + "    table = torch.tensor([rank, 2, 1 - rank])\n"),
            (LOSS, LOSS.replace(", y)", ", table[y])")),
        ],
        "table",
        "RF108",
    ),
}


@pytest.mark.parametrize(
    "name",
    with_further(
        SPOILED,
        "weights of classes, counted by the own loader",
        "a weight for each sample",
        "mean and deviation of the inputs",
        "a number in a criterion",
        "a threshold from the epoch before",
        "numbers of classes in an order of each rank's own",
    ),
)
def test_the_number_is_named(name: str, tmp_path: Path) -> None:
    edits, variable, cause = SPOILED[name]
    write_script(tmp_path, *edits)
    status, report = judge(tmp_path, OPTIONS, ARGUMENTS)
    loss = next(verdict for verdict in report["verdicts"] if verdict["check"] == "loss")
    assert (status, loss["status"], loss["cause"]) == (1, "FAIL", cause), report["conclusion"]
    assert f"({variable} at train.py:" in loss["summary"]
    assert loss["place"].startswith("train.py:") and f"{variable} is " in loss["note"]


def test_the_same_number_on_all_ranks_passes(tmp_path: Path) -> None:
    write_script(tmp_path, (CRITERION, OF_ALL + POSITIVE), BINARY)
    status, report = judge(tmp_path, OPTIONS, ARGUMENTS)
    assert status == 0, report["conclusion"]


def test_another_fault_keeps_its_cause(tmp_path: Path) -> None:
    hardest = "F.cross_entropy(model(x), y, reduction='none').topk(len(x) // 4).values.mean() / heat"
    write_script(tmp_path, (CRITERION, CRITERION + "    heat = 1.5\n"), (LOSS, f"            loss = {hardest}\n"))
    status, report = judge(tmp_path, OPTIONS, ARGUMENTS)
    loss = next(verdict for verdict in report["verdicts"] if verdict["check"] == "loss")
    assert (status, loss["cause"]) == (1, "RF303"), loss
