"""Experiment trackers as scripts use them: rank 0 has the run, the others the tool's own disabled one.

The modules `wandb` and `mlflow` here are stubs: they note what they are told.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from convert.conversion import conversion, converted
from verify.projects.launch import Launcher

from retrofit.analysis.files.start import Start
from retrofit.convert.added.files import additions

# It notes every call that records something, and makes up a name and a folder in each process, as the real one does.
WANDB = '''
"""Stands for wandb."""
import json, os

run = None
config = None
summary = {}


class Config(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


class Run:
    def __init__(self, mode, config, name, id):
        self.is_disabled, self.config = mode == "disabled", Config(config or {})
        self.name = name or f"dummy-{os.getpid()}"
        self._id, self.summary = id or f"id-{os.getpid()}", {}
        if not self.is_disabled:
            self.config.update(lr=0.25)  # what a sweep has decided

    @property
    def id(self):
        return self._id

    @property
    def dir(self):
        return f"/tmp/run-{os.getpid()}"

    def log(self, entry, step=None):
        note("log", entry, self.is_disabled)

    def watch(self, model):
        note("watch", type(model).__name__, self.is_disabled)


def note(what, entry, is_disabled):
    if not is_disabled:
        with open("notes.jsonl", "a") as file:
            file.write(json.dumps([what, entry, os.environ.get("RANK", "0")]) + "\\n")


def init(project=None, mode=None, config=None, name=None, id=None, **options):
    global run, config_of_run
    run = Run(mode, config, name, id)
    globals()["config"] = run.config
    note("init", project, run.is_disabled)
    return run


def log(entry, step=None):
    run.log(entry, step)


def watch(model):
    run.watch(model)


def save(path):
    note("save", path, run.is_disabled)


def finish():
    note("finish", 0, run.is_disabled)


def login():
    note("login", 0, False)
'''
SCRIPT = """\
import os
import torch
import wandb
from torch.utils.data import DataLoader

torch.manual_seed(0)
wandb.login()
run = wandb.init(project="example", config={"lr": 0.1, "width": 4})
wandb.config.update({"seed": 1})
wandb.config.depth = 2
wandb.run.name = f"{wandb.run.name}-long"
data = torch.randn(16, 4)
loader = DataLoader(data, 4, shuffle=False)
model = torch.nn.Linear(wandb.config.width, 1)
wandb.watch(model)
optimizer = torch.optim.SGD(model.parameters(), lr=wandb.config.lr)
for epoch in range(2):
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        wandb.log({"loss": loss.item()})
    run.log({"epoch": epoch})
    run.summary["best"] = epoch
with open(f"seen_{os.environ.get('RANK', '0')}.json", "w") as file:
    file.write(str([wandb.config.lr, wandb.config.seed, run.name, run.id, run.dir, optimizer.param_groups[0]["lr"]]))
wandb.save("model.pt")
wandb.finish()
"""


def test_a_disabled_run_needs_no_guards(tmp_path: Path) -> None:
    lines = converted(tmp_path, SCRIPT)
    assert 'run = rd.output.start_tracker(wandb.init, project="example", config={"lr": 0.1, "width": 4})' in lines
    assert 'wandb.log({"loss": rd.reduce_loss(loss).item()})' in lines
    guarded = [lines[index + 1] for index, line in enumerate(lines) if line == "if rd.is_main_process():"]
    assert guarded == ["wandb.login()"]


def test_two_ranks_have_the_settings_and_the_name_of_one_run(tmp_path: Path, launcher: Launcher) -> None:
    (file,) = conversion(tmp_path, SCRIPT).files
    (tmp_path / "train.py").write_text(file.text.replace("rd.path_on_main(", "("))  # each rank shows what it sees
    (tmp_path / "wandb.py").write_text(WANDB)
    for path, data in additions(Start(tmp_path / "train.py", tmp_path), True).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    run = launcher.run(tmp_path, "train.py", [], 2, timeout_s=60, RETROFIT_BATCH="global")
    assert run["statuses"] == [0, 0], run["outputs"]
    seen = [(tmp_path / f"seen_{rank}.json").read_text() for rank in range(2)]
    assert seen[0] == seen[1] and seen[0].startswith("[0.25, 1, 'dummy-")
    notes = [json.loads(line) for line in (tmp_path / "notes.jsonl").read_text().splitlines()]
    assert {rank for _, _, rank in notes} == {"0"}
    counts = {
        what: sum(note[0] == what for note in notes) for what in ("login", "init", "watch", "log", "save", "finish")
    }
    assert counts == {"login": 1, "init": 1, "watch": 1, "log": 10, "save": 1, "finish": 1}


START = """\
import torch
IMPORT
from torch.utils.data import DataLoader

torch.manual_seed(0)
LINES
loader = DataLoader(torch.randn(16, 4), 4, shuffle=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("module", "line", "expected"),
    [
        (
            "import neptune",
            "run = neptune.init_run(project='a')",
            "run = rd.output.start_tracker(neptune.init_run, project='a')",
        ),
        ("import swanlab", "swanlab.init(project='a')", "rd.output.start_tracker(swanlab.init, project='a')"),
        ("from comet_ml import Experiment", "e = Experiment('key')", "e = rd.output.start_tracker(Experiment, 'key')"),
        (
            "from clearml import Task",
            "task = Task.init('a', 'b')",
            "task = rd.output.start_tracker(Task.init, 'a', 'b')",
        ),
        ("from aim import Run", "run = Run()", "run = rd.output.start_tracker(Run)"),
        ("import trackio", "trackio.init(project='a')", "rd.output.on_main_process(trackio.init, project='a')"),
        (
            "from torch_geometric.logging import log",
            "log(Epoch=1)\ninfo = log(Loss=0.5)",
            "info = rd.output.on_main_process(log, Loss=0.5)",
        ),
        (
            "from alive_progress import alive_bar",
            "with alive_bar(4) as bar: pass",
            "with alive_bar(4, disable=not rd.is_main_process()) as bar: pass",
        ),
        (
            "from rich.progress import Progress",
            "with Progress() as bar: pass",
            "with Progress(disable=not rd.is_main_process()) as bar: pass",
        ),
        ("import mlflow", "mlflow.log_params({'a': 1})", "mlflow.log_params({'a': 1})"),
        (
            "import mlflow",
            "with mlflow.start_run() as run: pass",
            "with rd.output.on_main_process(mlflow.start_run) as run: pass",
        ),
        (
            "import mlflow",
            "info = mlflow.log_artifact('a')",
            "info = rd.output.on_main_process(mlflow.log_artifact, 'a')",
        ),
        (
            "import wandb",
            "a = wandb.Artifact('a', type='b')",
            "a = rd.output.on_main_process(wandb.Artifact, 'a', type='b')",
        ),
        ("import wandb", "wandb.define_metric('a')", "wandb.define_metric('a')"),
    ],
)
def test_other_trackers_start_on_one_process(module: str, line: str, expected: str, tmp_path: Path) -> None:
    lines = converted(tmp_path, START.replace("IMPORT", module).replace("LINES", line))
    position = lines.index(expected)
    assert (lines[position - 1] == "if rd.is_main_process():") == (line == expected)


def test_a_hyperparameter_search_in_the_script_is_refused(tmp_path: Path) -> None:
    script = START.replace("IMPORT", "import wandb").replace("LINES", "wandb.agent('id', function=print)")
    (refusal,) = conversion(tmp_path, script).refusals
    assert refusal.code == "RF510" and "wandb agent" in refusal.refusal
