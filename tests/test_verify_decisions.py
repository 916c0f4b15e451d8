"""`retrofit verify` compares the figures by which a script stops, steps, keeps the best and sets its learning rate."""

from __future__ import annotations

from pathlib import Path

import pytest
from further_cases import with_further
from verify_command import judge
from verify_evidence import failures, insert, sound_runs
from verify_plain_script import ARGUMENTS, OPTIONS, write_script

from retrofit.verify.checks import run_checks
from retrofit.verify.source.decisions import decision_tests
from retrofit.verify.trace.events import DecisionInput, OptimizerStep
from retrofit.verify.trace.settings import KEEPS, PARTS

TRAINING = "for epoch in range(9):\n    for x in loader:\n        model(x).sum().backward()\n"
DECIDING = {
    "an end by an own loss": (TRAINING + "    if loss.item() < 0.1:\n        break\n", "loss.item() < 0.1", PARTS),
    "a step that is left out": (
        "for x in loader:\n    loss = model(x).sum()\n    if loss > limit:\n        continue\n    loss.backward()\n",
        "loss > limit",
        PARTS,
    ),
    "a count of bad epochs": (
        TRAINING + "    if acc > best:\n        bad = 0\n    else:\n        bad += 1\n    if bad > 3:\n        break\n",
        "acc > best",
        PARTS,
    ),
    "the best state": ("if acc > best:\n    best = acc\n    torch.save(state, path)\n", "acc > best", KEEPS),
    "the best state by a flag": ("is_best = acc > best\nsave_checkpoint(state, is_best)\n", "acc > best", KEEPS),
    "a class that stops early": (
        "class Stopper:\n    def __call__(self, loss):\n        if loss > self.best - self.delta:\n"
        "            self.count += 1\n            if self.count > 3:\n                self.stop = True\n"
        f"{TRAINING}    stopper(loss)\n    if stopper.stop:\n        break\n",
        "loss > self.best - self.delta",
        PARTS,
    ),
    "a function that says when to stop": (
        "def is_done(loss):\n    if loss < 0.1:\n        return True\n    return False\n"
        f"{TRAINING}    if is_done(loss):\n        break\n",
        "loss < 0.1",
        PARTS,
    ),
    "a loop until a loss": ("while loss > 0.1:\n    loss = train_one(x)\n    loss.backward()\n", "loss > 0.1", PARTS),
    "rank 0 keeps alone": (
        "if rank == 0 and acc > best:\n    torch.save(state, path)\n",
        "rank == 0 and acc > best",
        KEEPS,
    ),
}
HARMLESS = {
    "a line that is printed": TRAINING + "    if loss > 3:\n        print(loss)\n",
    "boxes of one sample": "def get(self, i):\n    for box in boxes:\n        if box.area < 1:\n            continue\n",
    "a random augmentation": "def flip(x, p):\n    if p > 0.5:\n        return x.flip(0)\n    return x\n",
    "the clock": TRAINING + "    if time.time() - start > limit:\n        break\n",
    "an error": TRAINING + "    if loss > 1e9:\n        raise ValueError\n",
    "the ranks agree": (
        TRAINING + "    stop = torch.tensor(0)\n    if loss < 0.1:\n        stop = torch.tensor(1)\n"
        "    dist.all_reduce(stop)\n    if stop > 0:\n        break\n"
    ),
}


@pytest.mark.parametrize("name", DECIDING)
def test_a_test_that_decides_is_found(name: str, tmp_path: Path) -> None:
    source, text, kind = DECIDING[name]
    (tmp_path / "train.py").write_text(source)
    found = {test.text: test.kind for test in decision_tests(tmp_path, tmp_path / "train.py")["train.py"]}
    assert found.get(text) == kind


@pytest.mark.parametrize("name", HARMLESS)
def test_a_test_that_decides_nothing_is_left_alone(name: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HARMLESS[name])
    tests = decision_tests(tmp_path, tmp_path / "train.py").get("train.py", [])
    assert [test.text for test in tests if test.text != "stop > 0"] == []


def test_an_imported_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "stop.py").write_text(DECIDING["the best state"][0])
    (tmp_path / "other.py").write_text(DECIDING["the best state"][0])
    (tmp_path / "train.py").write_text("from tools.stop import Stopper\n")
    assert list(decision_tests(tmp_path, tmp_path / "train.py")) == ["tools/stop.py"]


def decide(runs, name, rank, value, kind):
    event = DecisionInput("train.py", 88, "acc > best", kind, ["acc", "best"], [value, 0.5])
    insert(runs[name], [rank], OptimizerStep, event, number=1)


@pytest.mark.parametrize(
    ("values", "kind", "is_fault"),
    [
        ((0.75, 0.75, 0.75), PARTS, False),
        ((0.75, 0.7, 0.75), PARTS, True),  # the ranks go other ways
        ((0.75, 0.7, 0.75), KEEPS, False),  # rank 0 keeps, by the right figure
        ((0.7, 0.75, 0.75), KEEPS, True),
        ((0.7, 0.7, 0.75), PARTS, True),
    ],
)
def test_figures_are_compared_with_all_ranks_and_one_process(values, kind, is_fault) -> None:
    runs = sound_runs()
    for (name, rank), value in zip((("many", 0), ("many", 1), ("reference", 0)), values):
        decide(runs, name, rank, value, kind)
    assert failures(run_checks(runs)) == ({"decisions": "RF401"} if is_fault else {})


LOSS_OF_RANK = ("scheduler.step(val_loss)", "scheduler.step(val_sum / len(val))")
SPOILED = {
    "the plateau of an own loss": [LOSS_OF_RANK],
    "an end by the own last loss": [("if bad > 5:", "if bad > 5 or loss.item() < 0.01:")],
    "patience by an own accuracy": [("is_best = acc > best", "own = right / len(val)\n        is_best = own > best")],
    "rank 0 keeps the best of its own": [
        ("            if is_best:", "            acc = right / len(val)\n            if acc > 0.2:"),
    ],
    "a step only where the own loss is large": [
        ("            optimizer.step()\n", "            if loss.item() > 0.3:\n                optimizer.step()\n")
    ],
    "steps are skipped by an own loss": [
        (
            "            optimizer.zero_grad()\n",
            "            if loss.item() == 0:\n                continue\n            optimizer.zero_grad()\n",
        ),
    ],
}
AGREED = {
    "as it is": [],
    "the script reads its own code, and draws from generators of every kind": [
        (
            "import torch\n",
            "import ast\nimport numpy as np\nimport torch\n"
            "assert isinstance(ast.parse(open(__file__).read(), __file__), ast.Module)\n"
            "rng, old = np.random.default_rng(0), np.random.RandomState(0)\n"
            "rng.multinomial(5, [0.2, 0.8]), rng.dirichlet([1.0, 2.0]), old.multivariate_normal([0.0], [[1.0]])\n"
            "rng.normal(size=np.array([2, 3])), rng.choice(np.array(5)), rng.bytes(4), old.weibull(2.0, 3)\n",
        )
    ],
    "rank 0 decides and tells the others": [
        (
            "        if bad > 5:\n            break\n",
            "        stop = torch.tensor(float(loss.item() < 0.01 if rank == 0 else 0))\n"
            "        if world > 1:\n            dist.broadcast(stop, 0)\n"
            "        if stop.item() > 0.5:\n            break\n",
        )
    ],
    "a reduction to rank 0, which keeps alone": [
        (
            "        if rank == 0:\n",
            "        own = torch.tensor([right, float(len(val))])\n"
            "        if world > 1:\n            dist.reduce(own, 0)\n"
            "        if rank == 0 and own[0] / own[1] > 0.1:\n            torch.save(net.state_dict(), 'kept.pt')\n"
            "        if rank == 0:\n",
        )
    ],
}


@pytest.mark.usefixtures("forked_python")
@pytest.mark.parametrize(
    "name",
    with_further(
        SPOILED,
        "patience by an own accuracy",
        "a step only where the own loss is large",
        "steps are skipped by an own loss",
    ),
)
def test_a_decision_by_an_own_figure_fails(name: str, tmp_path: Path) -> None:
    write_script(tmp_path, *SPOILED[name])
    _, report = judge(tmp_path, OPTIONS, ARGUMENTS)
    verdict = next(verdict for verdict in report["verdicts"] if verdict["check"] == "decisions")
    assert (verdict["status"], verdict["cause"]) == ("FAIL", "RF401"), verdict
    assert "train.py:" in verdict["summary"] and "on rank 0" in verdict["value"]


@pytest.mark.usefixtures("forked_python")
@pytest.mark.parametrize("name", with_further(AGREED, "as it is", "rank 0 decides and tells the others"))
def test_a_decision_that_the_ranks_agree_on_passes(name: str, tmp_path: Path) -> None:
    write_script(tmp_path, *AGREED[name])
    status, report = judge(tmp_path, OPTIONS, ARGUMENTS)
    assert status == 0, report["conclusion"]
    assert any(v["check"] == "decisions" and v["status"] == "PASS" for v in report["verdicts"])
