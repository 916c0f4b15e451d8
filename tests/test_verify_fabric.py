"""`retrofit verify` on trainings with Lightning Fabric: sound, or with one mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
from further_cases import with_further
from library_scripts import WITH_FABRIC, changed
from verify_command import judge

pytestmark = pytest.mark.usefixtures("forked_python")

STRATEGY = 'strategy="ddp"'
OPTIONS = f'accelerator="cpu", devices=int(os.environ.get("WORLD_SIZE", 1)), {STRATEGY}'
SOUND = {
    "plain": (),
    "half precision": ((STRATEGY, f'{STRATEGY}, precision="bf16-mixed"'),),
    "all devices": ((OPTIONS, ""),),
    "written for `fabric run`": ((OPTIONS, ""), ("fabric.launch()\n", "")),
}
SUM = '    right, total = fabric.all_reduce((right, total), reduce_op="sum")\n'
# What is changed, the cause, and a word of the remedy.
MISTAKES = {
    "loader": (
        "train_loader, test_loader = fabric.setup_dataloaders(train_loader, test_loader)",
        "test_loader = fabric.setup_dataloaders(test_loader)",
        "RF103",
        "setup_dataloaders",
    ),
    "figure": (SUM, "", "RF401", "all_reduce"),
    "scaled": ("fabric.backward(loss)", "fabric.backward(loss * fabric.world_size)", "RF301", "fabric.backward"),
    "guarded": (SUM, f"    if fabric.is_global_zero:\n    {SUM}", "RF402", "is_global_zero"),
}


LOADED = "    fabric.load(args.resume, state)\n"
RESUMES = {
    "optimizer": (LOADED, f"{LOADED}    optimizer.optimizer.state.clear()\n"),
    "scheduler": ('"scheduler": scheduler, ', ""),
    "epoch": ('range(state["epoch"], args.epochs)', "range(args.epochs)"),
}


@pytest.mark.parametrize("name", with_further(SOUND, "plain", "half precision", "all devices"))
def test_a_sound_training_is_not_accused(tmp_path: Path, name: str) -> None:
    (tmp_path / "train.py").write_text(changed(WITH_FABRIC, *SOUND[name]))
    status, report = judge(tmp_path, ["--batch-flag", "batch_size"], ["--batch_size", "8"])
    assert (status, report["status"]) == (0, "PASS"), report["conclusion"]
    resume = next(verdict for verdict in report["verdicts"] if verdict["check"] == "resume")
    assert resume["status"] == "PASS" and "Lightning Fabric counts the epochs" in resume["note"]


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n[0] != "s")) for n in MISTAKES])
def test_a_mistake_is_named_in_the_words_of_fabric(tmp_path: Path, name: str) -> None:
    before, after, code, word = MISTAKES[name]
    (tmp_path / "train.py").write_text(changed(WITH_FABRIC, (before, after)))
    status, report = judge(tmp_path, ["--batch-flag", "batch_size"], ["--batch_size", "8"])
    assert status == 1, report["conclusion"]
    assert any(fault["cause"] == code and word in fault["remedy"] for fault in report["faults"]), report["faults"]


@pytest.mark.slow
@pytest.mark.parametrize("name", RESUMES)
def test_what_is_not_restored_fails(tmp_path: Path, name: str) -> None:
    (tmp_path / "train.py").write_text(changed(WITH_FABRIC, RESUMES[name]))
    status, report = judge(tmp_path, ["--batch-flag", "batch_size"], ["--batch_size", "8"])
    assert status == 1 and any(fault["cause"] == "RF507" for fault in report["faults"]), report["conclusion"]
