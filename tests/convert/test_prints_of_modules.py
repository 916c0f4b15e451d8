"""What the files around a training print appears once as well: of its data, its plots, its models."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.additions_of import write_converted
from convert.conversion import conversion, converted
from verify.projects.launch import Launcher

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader

import data
import plots

loader = DataLoader(data.samples(), batch_size=4)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for (x,) in loader:
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
plots.show(losses)
"""
DATA = """\
import torch
from torch.utils.data import TensorDataset


def samples():
    print("reading samples")
    return TensorDataset(torch.ones(16, 4))
"""
PLOTS = """\
def show(losses):
    print("drawing", len(losses), "losses")


def other():
    return "nothing is printed"
"""


@pytest.mark.parametrize("name", ["data.py", "plots.py"])
def test_the_print_of_a_module_is_that_of_rank_0(name: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, SCRIPT, data=DATA, plots=PLOTS)
    (text,) = (file.text for file in result.files if file.path.name == name)
    assert "from multigpu import print_main as print" in text


def test_a_module_whose_prints_nothing_runs_stays_as_it_is(tmp_path: Path) -> None:
    silent = "def show(losses):\n    return losses\n\n\ndef other():\n    print('never')\n"
    result = conversion(tmp_path, SCRIPT, data=DATA, plots=silent)
    assert "plots.py" not in [file.path.name for file in result.files]


def test_two_processes_print_each_line_once(tmp_path: Path, launcher: Launcher) -> None:
    write_converted(tmp_path, conversion(tmp_path, SCRIPT, data=DATA, plots=PLOTS))
    run = launcher.run(tmp_path, "train.py", [], world_size=2, RETROFIT_BATCH="global")
    assert run["statuses"] == [0, 0], run["outputs"]
    printed = "".join(run["outputs"])
    assert (printed.count("reading samples"), printed.count("drawing 4 losses")) == (1, 1)


EARLY = """\
import os

try:
    import comet_ml
except ImportError:
    print("no comet")
import torch
from torch import nn
from torch.utils.data import DataLoader

print("imported")
"""


def test_a_print_between_the_imports_appears_once(tmp_path: Path) -> None:
    training = SCRIPT[SCRIPT.index("loader =") : SCRIPT.index("plots.show")].replace(
        "data.samples()", "torch.ones(8, 4)"
    )
    lines = [line.strip() for line in converted(tmp_path, EARLY + training)]
    assert lines.index("from multigpu import print_main as print") < lines.index('print("no comet")')


BETWEEN = "print('starting')\nimport torch\n" + SCRIPT


def test_nothing_is_imported_before_the_environment_is_set(tmp_path: Path) -> None:
    script = BETWEEN.replace("import torch\n", "import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport torch\n", 1)
    result = conversion(tmp_path, script, data=DATA, plots=PLOTS)
    (text,) = (file.text for file in result.files if file.path.name == "train.py")
    assert text.index("os.environ") < text.index("import print_main as print")


@pytest.mark.parametrize(
    ("say", "edit"),
    [
        ("import builtins\n\n\ndef say(text):\n    builtins.print(text)\n", "rd.print_main(text)"),
        ("from names import tell\n\n\ndef say(text):\n    tell(text)\n", "rd.print_main(text)"),
        ("say = print\nimport os\n", "from multigpu import print_main as print"),
        ("import functools\nsay = functools.partial(print, flush=True)\nimport os\n", "print_main as print"),
    ],
)
def test_a_print_under_another_name_appears_once(tmp_path: Path, say: str, edit: str) -> None:
    script = f"{say}{SCRIPT}say('the end')\n"
    lines = converted(tmp_path, script, data=DATA, plots=PLOTS, names="tell = print\n")
    places = [number for number, line in enumerate(lines) if edit in line]
    assert places
    named = [number for number, line in enumerate(lines) if line.startswith("say = ")]
    assert not named or places[0] < named[0]
