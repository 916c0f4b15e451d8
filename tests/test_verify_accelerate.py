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
SAVED = '    accelerator.save_state(os.path.join("out", f"epoch_{epoch}"))\n'
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


# Trainings in which nothing is wrong, and the exit status.
ACCUMULATED = (BUILT, "Accelerator(cpu=True, gradient_accumulation_steps=2)")
CLIPPED = """\
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
"""
REDUCED = """\
        right += (guess == batch["y"]).sum()
        total += torch.tensor(float(len(guess)))
    right, total = accelerator.reduce((right, total), reduction="sum")
"""
GATHERED = """\
        guess, truth = accelerator.gather_for_metrics((guess, batch["y"]))
        right += (guess == truth).sum().item()
        total += len(truth)
"""
GUARDED = """\
        if accelerator.is_main_process:
            guess = accelerator.gather_for_metrics(guess)
        total = 1
"""
BY_HAND = """\
            for _ in range(accelerator.num_processes):
                scheduler.step()
"""
DISPATCHED = (BUILT, "Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=True))")
LOOP = """\
    for batch in train_loader:
        with accelerator.accumulate(model):
"""
JOINED = (
    (BUILT, "Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(even_batches=False))"),
    ("Marks(96, 1)", "Marks(90, 1)"),
    ("Marks(29, 2)", "Marks(32, 2)"),
    ("LinearLR(optimizer, 1.0, 0.1, args.epochs * len(train_loader))", "LambdaLR(optimizer, lambda step: 1.0)"),
    (LOOP, LOOP.replace("accelerator.accumulate", "accelerator.join_uneven_inputs([model]), accelerator.accumulate")),
)
SOUND = {
    "accumulated and clipped": ((ACCUMULATED, ("            optimizer.step()\n", CLIPPED)), 0),
    "half precision": (((BUILT, 'Accelerator(cpu=True, mixed_precision="bf16")'),), 0),
    "reduced": (((GATHERED, REDUCED), ("Marks(29, 2)", "Marks(32, 2)")), 0),
    "dispatched": ((DISPATCHED,), 3),
    "joined": (JOINED, 0),
    # The schedule asks before prepare(), and the script does not say that it is without GPUs.
    "dropped to half of an epoch": (((BUILT, "Accelerator()"), ("Marks(96, 1)", "Marks(192, 1)")), 0),
}
MISTAKES = {
    "gather": ((("gather_for_metrics", "gather"),), "RF111", "gather_for_metrics"),
    "stepped by hand": ((("            scheduler.step()\n", BY_HAND),), "RF305", "num_processes"),
    "guarded": (((GATHERED, GUARDED),), "RF402", "outside of is_main_process"),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n != "dispatched")) for n in SOUND])
def test_a_sound_training_is_not_accused(tmp_path: Path, name: str) -> None:
    changes, expected = SOUND[name]
    status, report, _ = verified(tmp_path, *changes)
    assert (status, report["status"]) == (expected, {0: "PASS", 3: "INCOMPLETE"}[expected]), report["conclusion"]


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n[0] != "s")) for n in MISTAKES])
def test_a_mistake_is_named_in_the_words_of_accelerate(tmp_path: Path, name: str) -> None:
    changes, code, word = MISTAKES[name]
    status, report, _ = verified(tmp_path, *changes)
    assert status == 1, report["conclusion"]
    (fault,) = report["faults"]
    assert fault["cause"] == code and word in fault["remedy"]


@pytest.mark.parametrize(
    "seedable",
    [pytest.param(False, id="its own order"), pytest.param(True, id="seedable", marks=pytest.mark.slow)],
)
def test_an_order_that_accelerate_does_not_restore_is_a_note(tmp_path: Path, seedable: bool) -> None:
    status, report, verdicts = verified(tmp_path, *([SEEDABLE, SET_EPOCH] if seedable else []))
    assert (status, report["status"]) == (0, "PASS"), report["conclusion"]
    assert verdicts["resume"]["status"] == "PASS"
    note = verdicts["resume"]["note"] or ""
    assert note.startswith("Accelerate does not save the generator of a shuffled loader") is not seedable


def test_a_rank_that_saves_its_random_state_late_is_waited_for(tmp_path: Path) -> None:
    late = (SAVED, f"    __import__('time').sleep(accelerator.process_index)\n{SAVED}")
    status, report, _ = verified(tmp_path, SEEDABLE, SET_EPOCH, late)
    assert (status, report["status"]) == (0, "PASS"), report["conclusion"]


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n[0] != "s")) for n in RESUMES])
def test_what_else_is_not_restored_fails(tmp_path: Path, name: str) -> None:
    status, report, verdicts = verified(tmp_path, *RESUMES[name])
    assert status == 1 and verdicts["resume"]["status"] == "FAIL", report["conclusion"]
    assert verdicts["resume"]["cause"] == "RF507"
    assert "other samples follow" not in verdicts["resume"]["summary"]
