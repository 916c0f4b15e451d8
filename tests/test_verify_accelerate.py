"""`retrofit verify` on trainings with Hugging Face Accelerate: sound in each of its modes, or with one mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from library_scripts import WITH_ACCELERATE, changed
from verify_command import judge

pytestmark = pytest.mark.usefixtures("forked_python")

BUILT = "Accelerator(cpu=True)"
SEEDABLE = (BUILT, "Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))")
SET_EPOCH = ("    for batch in train_loader:\n", "    train_loader.set_epoch(epoch)\n    for batch in train_loader:\n")
LOADED = "    accelerator.load_state(args.resume)\n"
# What differs when the training is resumed, though all that Accelerate restores is asked for.
RESUMES = {
    "weights changed": ((LOADED, f"{LOADED}    accelerator.unwrap_model(model)[0].weight.data.mul_(1.01)\n"),),
    "scheduler not prepared": (
        ("loader, scheduler = accelerator", "loader = accelerator"),
        ("test_loader, scheduler\n", "test_loader\n"),
    ),
    "momentum forgotten": ((LOADED, f"{LOADED}    optimizer.optimizer.state.clear()\n"),),
}


def verified(folder: Path, *changes: tuple[str, str]) -> tuple[int, dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the exit status of `verify`, its report, and the verdicts by check."""
    (folder / "train.py").write_text(changed(WITH_ACCELERATE, *changes))
    options = ["--batch-flag", "batch_size", "--resume-args=--resume out/epoch_0"]
    status, report = judge(folder, options, ["--batch_size", "8"])
    return status, report, {verdict["check"]: verdict for verdict in report["verdicts"]}


@pytest.mark.parametrize("seedable", [False, True], ids=["its own order", "seedable"])
def test_an_order_that_accelerate_does_not_restore_is_a_note(tmp_path: Path, seedable: bool) -> None:
    status, report, verdicts = verified(tmp_path, *([SEEDABLE, SET_EPOCH] if seedable else []))
    assert (status, report["status"]) == (0, "PASS"), report["conclusion"]
    assert verdicts["resume"]["status"] == "PASS"
    note = verdicts["resume"]["note"] or ""
    assert note.startswith("Accelerate does not save the generator of a shuffled loader") is not seedable


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n[0] != "s")) for n in RESUMES])
def test_what_else_is_not_restored_fails(tmp_path: Path, name: str) -> None:
    status, report, verdicts = verified(tmp_path, *RESUMES[name])
    assert status == 1 and verdicts["resume"]["status"] == "FAIL", report["conclusion"]
    assert verdicts["resume"]["cause"] == "RF507"
    assert "other samples follow" not in verdicts["resume"]["summary"]
