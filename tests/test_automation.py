"""docs/automation.md: the exit statuses, the steps of the action, the hook, and the page for coding assistants."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from retrofit.verify.verdict import EXIT_STATUS

ROOT = Path(__file__).resolve().parents[1]
ACTION = yaml.safe_load((ROOT / ".github" / "actions" / "verify" / "action.yml").read_text())
SCRIPT = """\
import os
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if world > 1:
    dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(24, 3), torch.randn(24, 1))
net = torch.nn.Linear(3, 1)
model = torch.nn.parallel.DistributedDataParallel(net) if world > 1 else net
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sampler = DistributedSampler(data, world, rank)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in DataLoader(data, 8 // world, sampler=sampler):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
"""


def step(name: str) -> str:
    return next(step["run"] for step in ACTION["runs"]["steps"] if step["name"] == name)


def run_step(name: str, folder: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    files = {key: str(folder / key.lower()) for key in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
    environ = {
        **os.environ,
        **files,
        **inputs,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step(name)]  # as GitHub runs `shell: bash`
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.usefixtures("forked_python")
@pytest.mark.parametrize(("sampler", "status", "verdict"), [("world, rank", 0, "PASS"), ("1, 0", 1, "FAIL")])
def test_the_steps_of_the_action(sampler: str, status: int, verdict: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("world, rank)", f"{sampler})"))
    checked = run_step("Check", tmp_path, SCRIPT="train.py")
    assert checked.returncode == 0, checked.stderr
    inputs = {"SCRIPT": "train.py", "ARGUMENTS": "", "OPTIONS": "--html ''", "NPROC": "2"}
    done = run_step("Verify", tmp_path, **inputs)
    assert done.returncode == status, done.stderr
    assert (tmp_path / "github_output").read_text() == f"status={verdict}\n"
    summary = (tmp_path / "github_step_summary").read_text()
    assert summary.startswith(f"{verdict}: ") and ("RF103" in summary) == (verdict == "FAIL")


def test_the_action_says_what_its_steps_read() -> None:
    named = set(re.findall(r"inputs\.([\w-]+)", json.dumps(ACTION["runs"])))
    assert named == set(ACTION["inputs"])


def test_the_hook_runs_check_without_torch(tmp_path: Path) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    program, *arguments = hook["entry"].split()
    assert (program, hook["pass_filenames"], hook["language"]) == ("retrofit", False, "python")
    (tmp_path / "train.py").write_text(
        SCRIPT.replace("world, rank)", "1, 0)").replace("sampler.set_epoch(epoch)", "pass")
    )
    start = "import sys; sys.modules['torch'] = None; from retrofit.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", start, *arguments, "train.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "RF101" in done.stdout, done


def test_the_pages_name_every_exit_status_of_verify() -> None:
    page, skill = ((ROOT / "docs" / name).read_text() for name in ("automation.md", "skill/SKILL.md"))
    rows = dict(re.findall(r"^\| (\d) \|.*\| ([^|]*) \|$", page, re.MULTILINE))
    assert set(rows) == {str(status) for status in EXIT_STATUS.values()}
    assert rows["0"] == "PASS" and rows["1"] == "FAIL" and rows["3"] == "INCOMPLETE"
    assert all(re.search(rf"(Exit )?{status}: ", skill) for status in EXIT_STATUS.values())
    assert re.match(r"---\nname: [\w-]+\ndescription: .{20,500}\n---\n", skill)
