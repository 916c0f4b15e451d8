"""The place where the process group is joined: after the options are parsed, in every case, before what needs it."""

import textwrap
from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(args):
    loader = DataLoader(TensorDataset(torch.rand(32, 3), torch.rand(32, 1)), batch_size=8, shuffle=True)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for epoch in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()


def main(args=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
PARSE


if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("parse", "line_before"),
    [
        ("args = parser.parse_args()\ntrain(args)", "    args = parser.parse_args()"),
        ("if args is None:\n    args = parser.parse_args()\ntrain(args)", "        args = parser.parse_args()"),
        (
            "try:\n    args = parser.parse_args()\nexcept SystemExit:\n    args = parser.parse_args([])\ntrain(args)",
            "        args = parser.parse_args([])",
        ),
        (
            "if args is None:\n    args = parser.parse_args()\nelse:\n    args = parser.parse_args(args)\ntrain(args)",
            "        args = parser.parse_args(args)",
        ),
        (
            "if args is None:\n    if True:\n        args = parser.parse_args()\ntrain(args)",
            "            args = parser.parse_args()",
        ),
    ],
    ids=["plain", "if", "try", "else", "if in if"],
)
def test_the_group_is_joined_whatever_the_branch(parse: str, line_before: str, tmp_path: Path) -> None:
    lines = converted_lines(tmp_path, parse)
    assert lines[lines.index("    rd.setup_distributed()") - 1] == line_before


@pytest.mark.parametrize("parse", ["    train(args)", "    print(args)\ntrain(args)"], ids=["trains", "prints"])
def test_a_branch_that_needs_the_group_joins_it_itself(parse: str, tmp_path: Path) -> None:
    lines = converted_lines(tmp_path, f"if args is None:\n    args = parser.parse_args()\n{parse}")
    assert lines[lines.index("        rd.setup_distributed()") - 1] == "        args = parser.parse_args()"


def converted_lines(folder: Path, parse: str) -> list[str]:
    (file,) = conversion(folder, SCRIPT.replace("PARSE", textwrap.indent(parse, "    "))).files
    return file.text.splitlines()


PARSES_REST = """\
def load(parser, args):
    if args.lr > 1:
        parser.add_argument("--folder")
        args = parser.parse_args()
    else:
        parser.add_argument("--file")
        args = parser.parse_args()
    return args
"""
ADDS_OPTIONS = """\
def add_options(parser):
    parser.add_argument("--mode", default="a")
    args, _ = parser.parse_known_args()
    parser.set_defaults(lr=0.1 if args.mode == "a" else 0.2)
    return parser
"""


@pytest.mark.parametrize(
    ("options", "first", "second", "joined"),
    [
        pytest.param(
            PARSES_REST,
            "args, _ = parser.parse_known_args()",
            "args = options.load(parser, args)",
            "    rd.add_runtime_flags(parser)\n    args, _ = parser.parse_known_args()\n    rd.setup_distributed()\n",
            id="before a module parses the rest in its branches",
        ),
        pytest.param(
            ADDS_OPTIONS,
            "parser = options.add_options(parser)",
            "args = parser.parse_args()",
            "    args = parser.parse_args()\n    rd.setup_distributed()\n",
            id="not in a function that adds options to a parser",
        ),
    ],
)
def test_the_group_is_joined_where_the_script_parses(
    options: str, first: str, second: str, joined: str, tmp_path: Path
) -> None:
    script = SCRIPT.replace("PARSE", textwrap.indent(f"{first}\n{second}\ntrain(args)", "    "))
    (changed,) = conversion(tmp_path, "import options\n" + script, options=options).files
    assert joined in changed.text


EARLY = """\
import argparse
import os

import torch
from parts import NAMES
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
args = parser.parse_args()
LOADER
MODEL
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
"""
ITERATED = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LOADER
MODEL
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


class Training:
    def __iter__(self):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            yield


for _ in Training():
    pass
"""
LOADER = "loader = DataLoader(TensorDataset(torch.rand(32, 3), torch.rand(32, 1)), batch_size=8, shuffle=True)"
MODEL = "model = nn.Linear(3, 1)"
PARTS = "import torch\nfrom torch import nn\nfrom torch.utils.data import DataLoader, TensorDataset\n"


@pytest.mark.parametrize(("name", "made"), [("loader", LOADER), ("model", MODEL)])
def test_the_group_is_joined_before_a_module_that_makes_what_needs_it(name: str, made: str, tmp_path: Path) -> None:
    script = EARLY.replace("NAMES", name)
    for place, line in (("LOADER", LOADER), ("MODEL", MODEL)):
        script = script.replace(place, "" if line == made else line)
    result = conversion(tmp_path, script, parts=PARTS + made + "\n")
    texts = {file.path.name: file.text for file in result.files}
    assert texts["train.py"].index("rd.setup_distributed()") < texts["train.py"].index("from parts import")
    assert f"{name} = rd.distribute_{name}({name})" in texts["parts.py"]


FETCHED = """\
import os
import urllib.request


def fetch():
    if not os.path.exists("data.bin"):
        urllib.request.urlretrieve("https://example.org/data.bin", "data.bin")
    return "data.bin"


DEFINED
"""


@pytest.mark.parametrize(
    "defined",
    [
        "class Data:\n    def __init__(self, path=fetch()):\n        self.path = path",
        "class Data:\n    path = fetch()",
        "def Data(path=fetch()):\n    return path",
        "class Data:\n    class Inner:\n        paths = [fetch()]",
    ],
    ids=["default", "attribute", "function", "inner class"],
)
def test_the_group_is_joined_before_a_module_that_downloads_where_it_is_imported(defined: str, tmp_path: Path) -> None:
    script = EARLY.replace("NAMES", "Data").replace("LOADER", LOADER).replace("MODEL", MODEL)
    result = conversion(tmp_path, script, parts=FETCHED.replace("DEFINED", defined))
    texts = {file.path.name: file.text for file in result.files}
    assert texts["train.py"].index("rd.setup_distributed()") < texts["train.py"].index("from parts import")
    assert "with rd.output.main_process_first():" in texts["parts.py"]


def test_the_group_is_joined_before_a_class_whose_objects_train_when_they_are_gone_through(tmp_path: Path) -> None:
    (file,) = conversion(tmp_path, ITERATED.replace("LOADER", LOADER).replace("MODEL", MODEL)).files
    assert file.text.index("\nrd.setup_distributed()\n") < file.text.index(LOADER)
