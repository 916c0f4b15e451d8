"""Modules that are imported by a name that is put together are read, or it is said that they are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrofit.cli import main
from retrofit.convert.plan import plan_conversion
from retrofit.training import read_project

CACHE = """\
import os
import torch
from torch.utils.data import Dataset


class Digits(Dataset):
    def __init__(self):
        if not os.path.exists("digits.pt"):
            torch.save(torch.randn(16, 3), "digits.pt")
        self.samples = torch.load("digits.pt", map_location="cpu")

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return self.samples[index]
"""
TRAIN = """\
import argparse
import importlib
import pkgutil
from importlib import import_module
import torch
from torch import nn
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="digits")
args = parser.parse_args()
torch.manual_seed(0)
IMPORT
loader = DataLoader(dataset, 4, shuffle=True)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
"""
READ = [
    'module = import_module("data." + args.data)\ndataset = getattr(module, "Digits")()',
    'module = importlib.import_module(f"data.{args.data}")\ndataset = getattr(module, args.data.title())()',
    'dataset = import_module("data.%s" % args.data).Digits()',
    'dataset = import_module("data.{}".format(args.data)).Digits()',
    'name = ".".join(["data", args.data])\ndataset = getattr(import_module(name), "Digits")()',
    'dataset = __import__("data." + args.data, fromlist=["Digits"]).Digits()',
    'dataset = import_module("." + args.data, package="data").Digits()',
    'for name in ["data.digits"]:\n    module = import_module(name)\ndataset = module.Digits()',
    "from data import registry\ndataset = registry.make(args.data)",
    'import sys\nsys.path.append("data")\ndataset = import_module(args.data).Digits()',
]  # fmt: skip
BY_THE_NAMES_OF_A_MODULE = [
    "import sets\ndataset = sets.__dict__[args.data.title()]()",
    'import sets\ndataset = sets.__dict__["Digits"]()',
    "import sets\ndataset = vars(sets)[args.data.title()]()",
    "import sets\ndataset = sets.__dict__.get(args.data.title())()",
    'import sets\nmake = sets.__dict__["make"]\ndataset = make()',
    "import data.digits as digits\ndataset = digits.__dict__[args.data.title()]()",
]
SETS = "from data.digits import *\nfrom data.digits import Digits as Same\n\n\ndef make():\n    return Same()\n"
REGISTRY = """\
import importlib
import pkgutil

TABLE = {}
for found in pkgutil.iter_modules(__path__ if "__path__" in globals() else ["data"]):
    TABLE[found.name] = importlib.import_module(f"data.{found.name}")


def make(name):
    return getattr(TABLE[name], "Digits")()
"""
NOT_READ = 'dataset = getattr(import_module(args.data), "Digits")()'


def write(folder: Path, lines: str) -> Path:
    (folder / "data").mkdir()
    files = {"data/__init__.py": "", "data/digits.py": CACHE, "data/registry.py": REGISTRY}
    files |= {"sets.py": SETS} if "sets" in lines else {}
    files = {**files, "data/old.py": "print 'of Python 2'\n", "train.py": TRAIN.replace("IMPORT", lines)}
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder / "train.py"


@pytest.mark.parametrize("lines", [*READ, *BY_THE_NAMES_OF_A_MODULE])
def test_modules_that_an_imported_name_can_mean_are_converted_too(lines: str, tmp_path: Path) -> None:
    conversion = plan_conversion(read_project(write(tmp_path, lines)))
    changed = {file.source.name: file.text for file in conversion.files}
    assert (
        "with rd.output.main_process_first(share_draws=True):" in changed["data/digits.py"] and not conversion.refusals
    )


def test_a_module_that_cannot_be_read_is_reported_and_the_rest_converted(tmp_path: Path) -> None:
    project = read_project(write(tmp_path, READ[0]))
    assert not project.modules.unreadable
    assert [place.partition(":")[0] for place in project.modules.not_read] == ["data/old.py"]


def test_the_modules_next_to_that_of_an_option_are_read_too(tmp_path: Path) -> None:
    script = write(tmp_path, READ[-1])
    (tmp_path / "data" / "letters.py").write_text(CACHE.replace("digits", "letters"))
    conversion = plan_conversion(read_project(script))
    assert {"data/digits.py", "data/letters.py"} <= {file.source.name for file in conversion.files}
    script.write_text(script.read_text().replace('default="digits"', 'default="digits", choices=["digits"]'))
    conversion = plan_conversion(read_project(script))
    assert "data/letters.py" not in {file.source.name for file in conversion.files}


def test_a_name_that_can_be_any_module_is_listed_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    script = write(tmp_path, NOT_READ)
    main(["check", str(script)])
    place = "train.py:13:19: import_module(args.data) can be any module"
    assert f"warning: not read: {place}" in capsys.readouterr().err
    assert main(["convert", str(script), "--write"]) == 0
    assert f"not read, so nothing is changed there: {place}" in capsys.readouterr().err
    assert f"- {place}" in (tmp_path / "MULTI_GPU.md").read_text()


def test_a_library_that_is_imported_by_name_is_not_listed(tmp_path: Path) -> None:
    lines = 'for name in ["torch.utils.tensorboard", "tensorboardX"]:\n    module = import_module(name)\ndataset = []'
    assert read_project(write(tmp_path, lines)).modules.not_read == []
