"""`retrofit verify` on what a resume loses without a step that shows it: averages, schedulers, streams, best values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from verify_command import judge
from verify_evidence import change, cut, events_of, failures, insert, order_of_epoch, redraw, run_of, sound_runs, spoil

from retrofit.verify.checks import run_checks
from retrofit.verify.checks.checkpoint.resume import other_number_of_steps
from retrofit.verify.trace.events import (
    DecisionInput,
    EpochOrder,
    FileLoad,
    InitialWeights,
    IterationStart,
    OptimizerStep,
    ProcessExit,
)

pytestmark = pytest.mark.usefixtures("forked_python")

SCRIPT = """\
import argparse
import copy
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset


class Noisy(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index] + 0.1 * torch.randn(6), self.y[index]


parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=8)
parser.add_argument("--resume", default="")
args = parser.parse_args()
world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
if world > 1:
    dist.init_process_group("gloo")
torch.manual_seed(3)
train = Noisy(torch.randn(64, 6), torch.randn(64, 1))
val = TensorDataset(torch.randn(20, 6), torch.randn(20, 1))
body, head = torch.nn.Linear(6, 12), torch.nn.Linear(12, 1)
average = copy.deepcopy(head).requires_grad_(False)
raw_body, raw_head = body, head
if world > 1:
    body, head = DistributedDataParallel(body), DistributedDataParallel(head)
optimizers = [torch.optim.SGD(net.parameters(), 0.1, momentum=0.9) for net in (body, head)]
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizers[0], factor=0.5, patience=3)
cosine = torch.optim.lr_scheduler.StepLR(optimizers[1], 30)
sampler = DistributedSampler(train) if world > 1 else None
loader = DataLoader(train, args.batch_size, sampler=sampler, shuffle=sampler is None, drop_last=True)
val_loader = DataLoader(val, 10)
first_epoch, best = 0, float("-inf")
torch.manual_seed(100 + rank)
if args.resume:
    state = torch.load(args.resume, map_location="cpu", weights_only=False)
    raw_body.load_state_dict(state["body"])
    raw_head.load_state_dict(state["head"])
    average.load_state_dict(state["average"])
    optimizers[0].load_state_dict(state["optimizer"])
    optimizers[1].load_state_dict(state["head_optimizer"])
    plateau.load_state_dict(state["plateau"])
    cosine.load_state_dict(state["cosine"])
    torch.set_rng_state(state["rng"][rank])
    best, first_epoch = state["best"], state["epoch"]
for epoch in range(first_epoch, 2):
    if sampler is not None:
        sampler.set_epoch(epoch)
    for x, y in loader:
        for optimizer in optimizers:
            optimizer.zero_grad()
        (head(torch.relu(body(x))) - y).pow(2).mean().backward()
        for optimizer in optimizers:
            optimizer.step()
        with torch.no_grad():
            for ours, theirs in zip(average.parameters(), raw_head.parameters()):
                ours.lerp_(theirs, 0.2)
    cosine.step()
    with torch.no_grad():
        errors = [(average(torch.relu(raw_body(x))) - y).pow(2).sum().item() for x, y in val_loader]
    score = -sum(errors) / len(val) - 10 * epoch
    plateau.step(-score)
    is_best, best = score > best, max(best, score)
    streams = [torch.get_rng_state()]
    if world > 1:
        streams = [None] * world
        dist.all_gather_object(streams, torch.get_rng_state())
    if rank == 0:
        print(f"epoch {epoch}: score {score:.4f}")
        state = {"body": raw_body.state_dict(), "head": raw_head.state_dict(), "average": average.state_dict(),
                 "optimizer": optimizers[0].state_dict(), "head_optimizer": optimizers[1].state_dict(),
                 "plateau": plateau.state_dict(), "cosine": cosine.state_dict(), "best": best, "epoch": epoch + 1,
                 "rng": streams, "seconds": os.times().elapsed, "folder": os.getcwd()}
        torch.save(state, "last.pt")
        if is_best:
            torch.save(state, "best.pt")
if world > 1:
    dist.barrier()
    dist.destroy_process_group()
"""
# What is lost: (old text, new text), the check that fails, its cause, and what it says.
LOST: dict[str, tuple[str, str, str, str, str]] = {
    "average": ('    average.load_state_dict(state["average"])\n', "", "resume", "RF507", "the weights of Linear"),
    "average rebuilt": (
        'average.load_state_dict(state["average"])\n',
        "average = copy.deepcopy(raw_head).requires_grad_(False)\n",
        "resume",
        "RF507",
        "the weights of Linear",
    ),
    "memory of a plateau": (
        '    plateau.load_state_dict(state["plateau"])\n',
        "",
        "resume",
        "RF507",
        "ReduceLROnPlateau",
    ),
    "schedule begins again": (
        '    cosine.load_state_dict(state["cosine"])\n',
        "",
        "resume",
        "RF507",
        "StepLR.last_epoch",
    ),
    "second optimizer": (
        '    optimizers[1].load_state_dict(state["head_optimizer"])\n',
        "",
        "resume",
        "RF507",
        "optimizer's state",
    ),
    "best value": (
        'best, first_epoch = state["best"], state',
        "first_epoch = state",
        "resume",
        "RF507",
        "'best' in last.pt",
    ),
    "rank 0 alone": (
        '    raw_body.load_state_dict(state["body"])\n',
        '    if rank == 0:\n        raw_body.load_state_dict(state["body"])\n',
        "resume",
        "RF507",
        "on rank 1",
    ),
    "streams": ('    torch.set_rng_state(state["rng"][rank])\n', "", "resume", "RF507", "'rng/0' in last.pt"),
    "streams of the ranks": (
        'state["rng"][rank]',
        'state["rng"][0]',
        "random_streams",
        "RF109",
        "after a resume ranks 0 and 1 draw from the same torch stream",
    ),
}
QUICK = ("average", "streams of the ranks")


def verdicts_of(folder: Path, script: str, *options: str) -> tuple[int, dict[str, Any]]:
    (folder / "train.py").write_text(script)
    status, report = judge(folder, ["--batch-flag", "batch_size", *options], ["--batch_size", "8"])
    return status, {verdict["check"]: verdict for verdict in report["verdicts"]}


def edited(old: str, new: str) -> str:
    assert SCRIPT.count(old) == 1, old
    return SCRIPT.replace(old, new)


def test_a_resume_that_restores_everything_passes(tmp_path: Path) -> None:
    status, verdicts = verdicts_of(tmp_path, SCRIPT)
    assert [v["summary"] for v in verdicts.values() if v["status"] == "FAIL"] == []
    assert (status, verdicts["resume"]["status"]) == (0, "PASS")


@pytest.mark.parametrize("lost", [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK)) for n in LOST])
def test_what_a_resume_loses_is_named(lost: str, tmp_path: Path) -> None:
    old, new, check, cause, words = LOST[lost]
    status, verdicts = verdicts_of(tmp_path, edited(old, new))
    failed = {name: v["cause"] for name, v in verdicts.items() if v["status"] == "FAIL"}
    assert (status, failed) == (1, {check: cause})
    assert words in verdicts[check]["summary"]


def test_what_one_process_loses_too_is_said(tmp_path: Path) -> None:
    """Without a script before the change it is a fault of the script; with one that loses it, too, it is none."""
    script = edited(LOST["average"][0], "")
    status, verdicts = verdicts_of(tmp_path, script)
    assert status == 1 and "the script does the same on one process" in verdicts["resume"]["note"]
    (tmp_path / "before.py").write_text(script.replace("sampler=sampler, shuffle=sampler is None", "shuffle=True"))
    status, verdicts = verdicts_of(tmp_path, script, "--original", "before.py")
    assert (status, verdicts["resume"]["status"]) == (0, "NOT APPLICABLE")
    assert "not restored by the script before the change either, on one process" in verdicts["resume"]["summary"]


@pytest.mark.slow
def test_what_the_script_before_the_change_restores_is_a_fault_of_the_change(tmp_path: Path) -> None:
    (tmp_path / "before.py").write_text(SCRIPT)
    status, verdicts = verdicts_of(tmp_path, edited(LOST["average"][0], ""), "--original", "before.py")
    assert (status, verdicts["resume"]["status"]) == (1, "FAIL")
    assert "so, too" in verdicts["resume"]["note"] and "one process" not in verdicts["resume"]["note"]


def test_a_figure_that_decides_must_be_restored() -> None:
    """The best value so far need not show in a file, a figure or a weight: here both runs save the same."""
    runs = sound_runs()
    change(runs["resumed"], DecisionInput, values=[0.0])
    verdicts = {verdict.check: verdict for verdict in run_checks(runs)}
    assert failures(verdicts.values()) == {"resume": "RF507"}
    assert "'accuracy', by which `accuracy > best` decides, is another one" in verdicts["resume"].summary


def test_a_figure_that_one_process_does_not_have_need_not_be_restored() -> None:
    runs = sound_runs()
    change(runs["resumed"], DecisionInput, values=[0.0])
    change(runs["many"], DecisionInput, values=[0.1], kind="keeps", names=["seconds_per_step"])
    change(runs["resumed"], DecisionInput, names=["seconds_per_step"])
    assert "resume" not in failures(run_checks(runs))


@pytest.mark.parametrize("has_original", [True, False], ids=["as before the change", "of the script"])
def test_a_resume_that_fails_on_one_process_too_is_judged_by_the_original(has_original: bool) -> None:
    runs = sound_runs(original=has_original)
    runs["alone"] = run_of("alone")
    runs["alone_resumed"] = run_of("alone_resumed", epochs=(1,))
    for name in ("reload", "reload_original"):
        runs.pop(name, None)
    for name in ("resumed", "alone_resumed"):
        for rank in range(runs[name].world_size):
            cut(runs[name], rank, IterationStart, 0, 1, ("RuntimeError", "size mismatch"))
    verdicts = {verdict.check: verdict for verdict in run_checks(runs)}
    if has_original:
        assert failures(verdicts.values()) == {}
        assert "before the change it does not resume on one process either" in verdicts["resume"].summary
    else:
        assert failures(verdicts.values()) == {"completes": None}
        assert verdicts["completes"].note == "the script does the same on one process"


@pytest.mark.parametrize("has_original", [True, False], ids=["as before the change", "of the script"])
def test_an_order_that_begins_again_on_one_process_too_is_judged_by_the_original(has_original: bool) -> None:
    """The run on one process has the batches of the one without the stop; its sampler says what it would have drawn."""
    runs = sound_runs(original=has_original)
    runs["alone"], runs["alone_resumed"] = run_of("alone"), run_of("alone_resumed", epochs=(1,))
    runs["alone_resumed"].steps_before = runs["resumed"].steps_before
    redraw(runs["resumed"], lambda rank, epoch: order_of_epoch(0)[rank::2])
    change(runs["alone_resumed"], EpochOrder, having={"iteration": 0}, batches=[order_of_epoch(0)])
    (verdict,) = [verdict for verdict in run_checks(runs) if verdict.check == "resume"]
    assert verdict.status == ("NOT APPLICABLE" if has_original else "FAIL")
    said = verdict.summary if has_original else verdict.note or ""
    assert (
        "not restored by the script before the change either" if has_original else "the same on one process"
    ) in said


@pytest.mark.parametrize(("epochs", "words"), [((0, 1), "4 steps with 2 processes, 2 with 1"), ((1,), None)])
def test_more_steps_than_one_process_makes_after_its_resume_are_found(epochs: tuple[int, ...], words: str) -> None:
    runs = sound_runs()
    runs["alone"], runs["alone_resumed"] = run_of("alone"), run_of("alone_resumed", epochs=(1,))
    runs["resumed"] = run_of("resumed", 2, epochs=epochs)
    fault = other_number_of_steps(runs, done=2)
    assert (fault and fault.value) == words


def test_ranks_that_part_after_a_resume_are_found_whatever_the_script_before_the_change_forgets() -> None:
    runs = sound_runs()
    runs["alone"], runs["alone_resumed"] = run_of("alone"), run_of("alone_resumed", epochs=(1,))
    runs["alone_resumed"].steps_before = runs["resumed"].steps_before
    redraw(runs["resumed"], lambda rank, epoch: order_of_epoch(0)[rank::2])
    change(runs["alone_resumed"], EpochOrder, having={"iteration": 0}, batches=[order_of_epoch(0)])
    hashes = ["weight of rank 1", "bias of rank 1"]
    change(runs["resumed"], OptimizerStep, [1], parameter_hash="of rank 1", parameter_hashes=hashes)
    (verdict,) = [verdict for verdict in run_checks(runs) if verdict.check == "resume"]
    assert (verdict.status, verdict.cause) == ("FAIL", "RF507")
    assert verdict.summary.startswith("the ranks hold different weights after the resume")


@pytest.mark.parametrize("is_lost", [False, True], ids=["all restored", "optimizer lost"])
def test_what_else_is_lost_shows_in_the_order_without_the_stop(is_lost: bool) -> None:
    """Where the script before the change begins the order again, too, the samples hide what the change forgets."""
    runs = sound_runs()
    runs["alone"], runs["alone_resumed"] = run_of("alone"), run_of("alone_resumed", epochs=(1,))
    runs["resumed_in_order"] = run_of("resumed_in_order", 2, epochs=(1,))
    for name in ("alone_resumed", "resumed_in_order"):
        runs[name].steps_before = runs["resumed"].steps_before
    redraw(runs["resumed"], lambda rank, epoch: order_of_epoch(0)[rank::2])
    change(runs["alone_resumed"], EpochOrder, having={"iteration": 0}, batches=[order_of_epoch(0)])
    for rank in (0, 1):  # their samplers begin the order again; the batches are those without the stop
        orders = [order_of_epoch(0)[rank::2]]
        change(runs["resumed_in_order"], EpochOrder, [rank], having={"iteration": 0}, batches=orders)
    if is_lost:
        hashes = ["another weight", "another bias"]
        parameters = [[9.0, 9.0], [9.0, 9.0]]
        for event in events_of(runs["resumed_in_order"], OptimizerStep):
            spoil(event, parameters=parameters, parameter_hash="others", parameter_hashes=hashes)
    (verdict,) = [verdict for verdict in run_checks(runs) if verdict.check == "resume"]
    if is_lost:
        assert (verdict.status, verdict.cause) == ("FAIL", "RF507")
        assert verdict.summary.startswith("the weights are others after a step with the same loss")
    else:
        assert verdict.status == "NOT APPLICABLE" and "not restored by the script before" in verdict.summary
        assert "all else is as without it" in (verdict.note or "")


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        ("nothing", None),
        ("weights", "the weights before the first step are not those of one process from the same checkpoint"),
        ("rate", "the learning rate is not that of one process from the same checkpoint"),
        ("optimizer", "after a step with the same loss the weights are not those of one process"),
        ("best value", "'best', by which `score > best` decides, is not that of one process"),
    ],
)
def test_what_the_change_loses_shows_next_to_what_the_script_loses_on_one_process(lost: str, words: str | None) -> None:
    """The script before the change resumes from the same checkpoint, on the same batches."""
    runs = sound_runs()
    runs["alone"], runs["alone_resumed"] = run_of("alone"), run_of("alone_resumed", epochs=(1,))
    runs["resumed_on_one"] = run_of("resumed_on_one", replay=True, epochs=(1,))
    runs["alone_resumed"].steps_before = runs["resumed"].steps_before
    for name in ("resumed", "alone_resumed"):  # the scheduler is not restored, whatever was changed
        change(runs[name], OptimizerStep, lr=[0.7])
    change(runs["resumed_on_one"], OptimizerStep, lr=[0.5 if lost == "rate" else 0.7])
    for name, values in {
        "many": [3.0, 5.0],
        "reference": [3.0, 5.0],
        "resumed": [5.0],
        "resumed_on_one": [5.0],
    }.items():
        path, line = ("before/train.py", 7) if name == "resumed_on_one" else ("train.py", 9)
        for value in values:
            best = 0.0 if lost == "best value" and name == "resumed" else value
            decision = DecisionInput(path, line, "score > best", "keeps", ["best"], [best])
            insert(runs[name], [*range(runs[name].world_size)], ProcessExit, decision)
    if lost == "weights":
        change(runs["resumed_on_one"], InitialWeights, parameters=[[9.0, 9.0], [9.0, 9.0]], parameter_hash="others")
    if lost == "optimizer":
        for event in events_of(runs["resumed"], OptimizerStep):
            spoil(event, parameters=[[9.0, 9.0], [9.0, 9.0]], parameter_hash="others", parameter_hashes=["a", "b"])
    (verdict,) = [verdict for verdict in run_checks(runs) if verdict.check == "resume"]
    if words is None:
        assert verdict.status == "NOT APPLICABLE" and "not restored by the script before" in verdict.summary
    else:
        assert (verdict.status, verdict.cause) == ("FAIL", "RF507")
        assert words in verdict.summary


@pytest.mark.parametrize("lost", ["nothing", "weights", "before the stop"])
def test_a_training_that_begins_with_loaded_weights_is_that_of_one_process(lost: str) -> None:
    """Where the trainings differ without loading anything, other checks say so."""
    runs = sound_runs()
    del runs["resumed"]
    runs["loaded"], runs["loaded_on_one"] = run_of("loaded", 2), run_of("loaded_on_one", replay=True)
    insert(runs["loaded_on_one"], [0], InitialWeights, FileLoad("net.pt", has_map_location=True, is_own=True))
    if lost != "nothing":
        change(runs["loaded_on_one"], InitialWeights, parameters=[[9.0, 9.0], [9.0, 9.0]], parameter_hash="others")
    if lost == "before the stop":
        change(runs["reference"], OptimizerStep, lr=[0.3])
    (verdict,) = [verdict for verdict in run_checks(runs) if verdict.check == "resume"]
    if lost == "weights":
        assert (verdict.status, verdict.note) == ("FAIL", "the script begins with net.pt, which it loads")
    else:
        assert verdict.status == "NOT APPLICABLE"
        assert bool(verdict.note) == (lost == "nothing")
