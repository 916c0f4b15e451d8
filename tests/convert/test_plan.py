"""What a conversion leaves to the user, and where the process group is joined."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrofit.convert.plan import Conversion, plan_conversion
from retrofit.training import read_project

SCRIPT = """\
import argparse
import os
BEFORE
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--gpu", default="0")
args = parser.parse_args()
BEHIND
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)
        LAYER

    def forward(self, x):
        return self.layer(x)


loader = DataLoader(TensorDataset(torch.randn(16, 3)), 4, shuffle=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in loader:
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
"""


def conversion_of(folder: Path, before: str = "", later: str = "", layer: str = "pass") -> Conversion:
    text = SCRIPT.replace("BEFORE", before).replace("BEHIND", later).replace("LAYER", layer)
    (folder / "train.py").write_text(text)
    return plan_conversion(read_project(folder / "train.py"))


def test_an_unused_layer_does_not_stop_the_conversion(tmp_path: Path) -> None:
    assert not [f for f in conversion_of(tmp_path, layer="self.old = nn.Linear(3, 3)").findings if f.code == "RF204"]


def test_the_process_group_starts_after_the_choice_of_gpus(tmp_path: Path) -> None:
    (file,) = conversion_of(tmp_path, later="if args.gpu:\n    os.environ['CUDA_VISIBLE_DEVICES'] = args.gpu").files
    lines = file.text.splitlines()
    choice = lines.index("    os.environ['CUDA_VISIBLE_DEVICES'] = rd.devices.visible_gpus(args.gpu)")
    assert lines[choice + 1] == "rd.setup_distributed()"


def test_gpus_chosen_before_the_imports_are_left_to_the_launcher(tmp_path: Path) -> None:
    conversion = conversion_of(tmp_path, before="os.environ['CUDA_VISIBLE_DEVICES'] = '0'")
    (advice,) = [finding for finding in conversion.findings if finding.code == "RF606"]
    assert advice.place.line == 3 and advice.edits
    (file,) = conversion.files
    lines = file.text.splitlines()
    choice = lines.index("os.environ['CUDA_VISIBLE_DEVICES'] = rd.devices.visible_gpus('0')")
    assert lines.index("import multigpu as rd") < choice < lines.index("import torch")
    assert choice < lines.index("rd.setup_distributed()")


@pytest.mark.parametrize("before", ["import random as rd", "def spread(rd):\n    return rd", "rd = 3"])
def test_the_runtime_has_another_name_where_its_own_is_taken(before: str, tmp_path: Path) -> None:
    conversion = conversion_of(tmp_path, before=before)
    assert not conversion.refusals
    (file,) = conversion.files
    lines = file.text.splitlines()
    assert before.splitlines()[0] in lines and "import multigpu" in lines and "import multigpu as rd" not in lines
    assert "rd." not in file.text and lines.index("import multigpu") < lines.index("multigpu.setup_distributed()")
    (tmp_path / "train.py").write_text(file.text)
    again = plan_conversion(read_project(tmp_path / "train.py"))
    assert not again.refusals and not again.files


def test_both_names_of_the_runtime_taken_are_refused(tmp_path: Path) -> None:
    refusals = conversion_of(tmp_path, before="import random as rd\nmultigpu = False").refusals
    assert [finding.refusal for finding in refusals] == ["multigpu is something else here; give that another name"]


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ("torch.nn.DataParallel(board.same(net))", "rd.model.data_parallel(torch.nn.DataParallel, board.same(net))"),
        ("torch.nn.parallel.data_parallel(board.same, net)", "board.same(net)"),
    ],
)
def test_a_changed_file_imports_the_runtime_where_it_needs_it(given: str, plain: str, tmp_path: Path) -> None:
    (tmp_path / "board.py").write_text(
        "import torch\n\n\nclass board:\n    same = staticmethod(lambda net: net)\n\n\n"
        f"def wrap(net):\n    return {given}\n"
    )
    (tmp_path / "train.py").write_text(
        SCRIPT.replace("BEFORE", "import board")
        .replace("BEHIND", "")
        .replace("LAYER", "pass")
        .replace("= Net()", "= board.wrap(Net())")
    )
    conversion = plan_conversion(read_project(tmp_path / "train.py"))
    (text,) = (file.text for file in conversion.files if file.path.name == "board.py")
    assert f"return {plain}\n" in text and ("import multigpu" in text) is plain.startswith("rd.")
