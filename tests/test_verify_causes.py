"""`retrofit verify` names the causes of wrong gradients and of figures that are not those of all ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from further_cases import with_further
from verify_command import judge
from verify_plain_script import ARGUMENTS, OPTIONS, write_script

pytestmark = pytest.mark.usefixtures("forked_python")

LOSS = "            loss = criterion(model(x), y)\n"
STEP = "            optimizer.step()\n"
REDUCE_AGAIN = """\
            if world > 1:
                for parameter in net.parameters():
                    dist.all_reduce(parameter.grad)
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
"""
DISTILLED = """\
            with torch.no_grad():
                target = teacher(x).softmax(1)
            out = model(x)
            loss = criterion(out, y) + criterion(out, target)
"""
FOLLOW = """\
                with torch.no_grad():
                    for slow, fast in zip(teacher.parameters(), net.parameters()):
                        slow.lerp_(fast, 0.2)
"""
TRAIN_LOSS = "mean_over_ranks(total, len(loader))\n"
SPOILED = {
    "a free parameter": (
        [
            (
                "    optimizer = torch.optim.SGD(model.parameters(),",
                "    scale = nn.Parameter(torch.ones(()))\n"
                "    optimizer = torch.optim.SGD([*model.parameters(), scale],",
            ),
            (LOSS, "            loss = criterion(scale * model(x), y)\n"),
        ],
        "ranks_agree",
        "RF211",
    ),
    "gradients that are averaged, then added up": (
        [(STEP, REDUCE_AGAIN + STEP)],
        "gradients",
        "RF301",
    ),
    "a choice among the samples": (
        [(LOSS, "            loss = F.cross_entropy(model(x), y, reduction='none').topk(len(x) // 4).values.mean()\n")],
        "loss",
        "RF303",
    ),
    "features that are centred by each rank's own mean": (
        [(LOSS, "            out = model(x)\n            loss = criterion(out - out.mean(0), y)\n")],
        "loss",
        "RF309",
    ),
    "gradients that each rank scales by a number of its own": (
        [(STEP, "            [p.grad.mul_(1 / (1 + loss.item())) for p in net.parameters()]\n" + STEP)],
        "ranks_agree",
        "RF216",
    ),
    "an optimizer that has the weights of a copy": (
        [
            ("SGD(model.parameters(),", "SGD((copy.deepcopy(net) if world > 1 else net).parameters(),"),
            ("import argparse\n", "import argparse\nimport copy\n"),
        ],
        "gradients",
        "RF211",
    ),
    "a teacher that rank 0 updates": (
        [
            ("import argparse\n", "import argparse\nimport copy\n"),
            (
                "    criterion = nn.CrossEntropyLoss()\n",
                "    criterion, teacher = nn.CrossEntropyLoss(), copy.deepcopy(net)\n",
            ),
            (LOSS, DISTILLED),
            (STEP, STEP + "            if rank == 0:\n" + FOLLOW),
        ],
        "loss",
        "RF211",
    ),
    "other weights that a rank evaluates": (
        [
            (
                "        right = val_sum = 0.0\n",
                "        if epoch and world > 1 and rank == 1:\n"
                "            net.load_state_dict({name: -value for name, value in net.state_dict().items()})\n"
                "        right = val_sum = 0.0\n",
            )
        ],
        "metrics",
        "RF401",
    ),
    "a mean over the elements of each rank that a mask leaves": (
        [
            (
                LOSS,
                "            mask = (y > 0).float()\n"
                "            loss = (F.cross_entropy(model(x), y, reduction='none') * mask).sum() / mask.sum()\n",
            )
        ],
        "loss",
        "RF302",
    ),
    "a training loss of rank 0": ([("= " + TRAIN_LOSS, "= total / len(loader)\n")], "metrics", "RF401"),
    "a training loss that is added up over the ranks": (
        [("= " + TRAIN_LOSS, "= world * " + TRAIN_LOSS)],
        "metrics",
        "RF401",
    ),
}
WORDS = {
    "a free parameter": "the gradient of scale is never averaged",
    "a teacher that rank 0 updates": "weights of Sequential that no optimizer trains are not the same on all ranks",
    "other weights that a rank evaluates": "the ranks evaluate different weights: those of Sequential on",
    "an optimizer that has the weights of a copy": "no gradient reaches the parameters that the optimizer has",
}
SOUND = {
    "a teacher": [
        ("import argparse\n", "import argparse\nimport copy\n"),
        (
            "    criterion = nn.CrossEntropyLoss()\n",
            "    criterion, teacher = nn.CrossEntropyLoss(), copy.deepcopy(net)\n",
        ),
        (LOSS, DISTILLED),
        (STEP, STEP + "            if True:\n" + FOLLOW),
    ],
    "clipping": [(STEP, "            nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n" + STEP)],
    "the last loss of rank 0": [("train loss {train_loss:.5f}", "last train loss {loss.item():.5f}")],
}


@pytest.mark.parametrize(
    "name",
    with_further(
        SPOILED,
        "gradients that are averaged, then added up",
        "a choice among the samples",
        "features that are centred by each rank's own mean",
        "a training loss that is added up over the ranks",
    ),
)
def test_the_cause_is_named(name: str, tmp_path: Path) -> None:
    edits, check, cause = SPOILED[name]
    write_script(tmp_path, *edits)
    status, report = judge(tmp_path, OPTIONS, ARGUMENTS)
    verdict = next(verdict for verdict in report["verdicts"] if verdict["check"] == check)
    assert (status, verdict["status"], verdict["cause"]) == (1, "FAIL", cause), verdict
    assert WORDS.get(name, "") in verdict["summary"]


@pytest.mark.parametrize("name", SOUND)
def test_what_is_right_passes(name: str, tmp_path: Path) -> None:
    write_script(tmp_path, *SOUND[name])
    status, report = judge(tmp_path, OPTIONS, ARGUMENTS)
    assert status == 0, report["conclusion"]
