"""The arguments with which `retrofit verify` continues a script: found in its parser, tried, or not guessed."""

from __future__ import annotations

from pathlib import Path

import pytest
from verify_command import judge

from retrofit.verify.evidence import RankTrace, Run
from retrofit.verify.restarts.arguments import CONTINUES, LOADS, SURE, Form, forms
from retrofit.verify.restarts.restart import Restart, loading_ways
from retrofit.verify.trace.events import FileSave, ParserOption

SCRIPT = """\
import argparse
import glob
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=8)
OPTIONS
args = parser.parse_args()
world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
if world > 1:
    dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 5), torch.randn(64, 1))
raw = model = torch.nn.Linear(5, 1)
if world > 1:
    model = DistributedDataParallel(raw)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
sampler = DistributedSampler(data) if world > 1 else None
loader = DataLoader(data, args.batch_size, sampler=sampler, shuffle=sampler is None)
first = 0
path = PATH
if path:
    state = torch.load(path, map_location="cpu")
    raw.load_state_dict(state["model"])
    RESTORE
for epoch in range(first, 2):
    if sampler is not None:
        sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        optimizer.step()
    if rank == 0:
        os.makedirs("out", exist_ok=True)
        state = {"model": raw.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
        torch.save(state, f"out/ckpt_{epoch}.pt")
    if world > 1:
        dist.barrier()
if world > 1:
    dist.destroy_process_group()
"""
NEWEST = '(sorted(glob.glob("out/ckpt_*.pt")) or [None])[-1]'
RESTORE = 'optimizer.load_state_dict(state["optimizer"]); first = state["epoch"]'
# Options, what they say of the path, and whether the script is found to continue.
SCRIPTS = {
    "resume": ('parser.add_argument("--resume", default="")', "args.resume", True),
    "by itself": ("", NEWEST, True),
    "switch": ('parser.add_argument("--auto-resume", action="store_true")', f"args.auto_resume and {NEWEST}", True),
    "switch and path": (
        'parser.add_argument("--resume", action="store_true")\nparser.add_argument("--ckpt", default="")',
        "args.resume and args.ckpt",
        True,
    ),
    "folder": (
        'parser.add_argument("--resume", default="", help="where it was")',
        "args.resume and os.path.join(args.resume, sorted(os.listdir(args.resume))[-1])",
        True,
    ),
    "yes or no": (
        'parser.add_argument("--resume", type=lambda text: {"True": True, "False": False}[text], default=False)',
        f"args.resume and {NEWEST}",
        True,
    ),
    "choice": (
        'parser.add_argument("--init_from", choices=["scratch", "resume"], default="scratch")',
        f'args.init_from == "resume" and {NEWEST}',
        True,
    ),
    "number": (
        'parser.add_argument("--resume_epoch", type=int, default=-1)',
        'args.resume_epoch >= 0 and f"out/ckpt_{args.resume_epoch}.pt"',
        True,
    ),
    "load": ('parser.add_argument("--load", default="")', "args.load", True),
    "help": ('parser.add_argument("--from-file", default="", help="resume from this file")', "args.from_file", True),
    "save": ('parser.add_argument("--checkpoint", default="out/mine.pt", help="where to save")', "None", False),
}
QUICK = ("by itself",)


def script(options: str, path: str, restore: str = RESTORE) -> str:
    return SCRIPT.replace("OPTIONS", options).replace("PATH", path).replace("RESTORE", restore)


def resume_of(folder: Path, text: str) -> tuple[int, dict[str, str]]:
    (folder / "train.py").write_text(text)
    status, report = judge(folder, ["--batch-flag", "batch_size"], ["--batch_size", "8"])
    (verdict,) = [verdict for verdict in report["verdicts"] if verdict["check"] == "resume"]
    return status, verdict


@pytest.mark.usefixtures("forked_python")
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK)) for n in SCRIPTS])
def test_how_a_script_continues_is_found(name: str, tmp_path: Path) -> None:
    options, path, is_found = SCRIPTS[name]
    status, verdict = resume_of(tmp_path, script(options, path))
    assert (status, verdict["status"]) == (0, "PASS" if is_found else "NOT APPLICABLE"), verdict
    assert is_found or "tried without success: --checkpoint out/ckpt_0.pt" in verdict["summary"]


@pytest.mark.usefixtures("forked_python")
def test_loaded_weights_that_begin_again_do_not_resume(tmp_path: Path) -> None:
    status, verdict = resume_of(tmp_path, script('parser.add_argument("--load", default="")', "args.load", "pass"))
    assert (status, verdict["status"]) == (0, "NOT APPLICABLE"), verdict
    assert verdict["note"].startswith(
        "with out/ckpt_0.pt loaded to begin with, the weights and losses are those of one"
    )


@pytest.mark.usefixtures("forked_python")
@pytest.mark.slow
def test_weights_that_one_rank_loads_to_begin_with_are_found(tmp_path: Path) -> None:
    text = script('parser.add_argument("--load", default="")', "args.load and rank == 0 and args.load", "pass")
    status, verdict = resume_of(tmp_path, text)
    assert (status, verdict["status"], verdict["cause"]) == (1, "FAIL", "RF507"), verdict
    assert verdict["note"] == "the script begins with out/ckpt_0.pt, which it loads"


def test_each_option_loads_the_file_that_has_its_name(tmp_path: Path) -> None:
    """Files of one model for several options are loaded together first, then one after the other."""
    many = Run("many", 1, [RankTrace(0, [FileSave(name, {}) for name in ("netG_0.pt", "netD_0.pt", "state.pt")])], [0])
    for event in many.main.of(FileSave):
        (tmp_path / event.path).touch()
    known = [Form((flag, "{checkpoint}"), CONTINUES) for flag in ("--netG", "--netD", "--load")]
    ways = [Restart([form.arguments[0], "state.pt"], "state.pt", 4, 4, 1, form) for form in known]
    single = [["--netG", "netG_0.pt"], ["--netD", "netD_0.pt"], ["--load", "state.pt"]]
    assert [way.arguments for way in loading_ways(many, ways, tmp_path)] == [single[0] + single[1], *single]


@pytest.mark.usefixtures("forked_python")
@pytest.mark.slow
def test_what_a_script_that_continues_by_itself_loses_is_found(tmp_path: Path) -> None:
    status, verdict = resume_of(tmp_path, script("", NEWEST, 'first = state["epoch"]'))
    assert (status, verdict["status"], verdict["cause"]) == (1, "FAIL", "RF507"), verdict


def option(flag: str, takes_value: bool = True, text: str = "", choices: list[str] | None = None) -> ParserOption:
    return ParserOption([flag], flag.lstrip("-").replace("-", "_"), takes_value, text, choices)


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ([option("--resume")], Form(("--resume", "{checkpoint}"), SURE)),
        ([option("--resume-from-checkpoint")], Form(("--resume-from-checkpoint", "{checkpoint}"), SURE)),
        ([option("--resume", choices=["auto", "no"])], Form(("--resume", "auto"), SURE)),
        ([option("--resume_dir"), option("--resume")], Form(("--resume", "{checkpoint}"), SURE)),
        ([option("--continue-training", False)], Form(("--continue-training",), SURE)),
        ([option("--resume", False), option("--ckpt_dir")], Form(("--resume",), LOADS)),
        ([option("--resume_epoch")], Form(("--resume_epoch", "{number}"), LOADS)),
        ([option("--ckpt_path")], Form(("--ckpt_path", "{checkpoint}"), CONTINUES)),
        ([option("--snapshot_dir")], Form(("--snapshot_dir", "{folder}"), CONTINUES)),
        ([option("--no_resume", False), option("--epochs")], Form((), CONTINUES)),
        ([option("--pretrained"), option("--save_checkpoint")], Form((), CONTINUES)),
    ],
)
def test_the_likeliest_form_comes_first(options: list[ParserOption], first: Form) -> None:
    assert forms(options)[0] == first
