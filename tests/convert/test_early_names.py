"""A name that is made before the processes join is handed out as soon as they have."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

IMPORTS = """\
import argparse
import os
import time

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

"""
REST = """\
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(16, 1)), 4, shuffle=True)
model = nn.Linear(1, 1)
optimizer = optim.SGD(model.parameters(), lr=1e-3)
for epoch in range(2):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
torch.save(model.state_dict(), args.save_dir + "last.pt")
"""
PARSER = "parser = argparse.ArgumentParser()\n"
STAMP = "stamp = time.strftime('%H%M%S')\n"
PARSE = "args = parser.parse_args()\n"
SAVE = "args.save_dir = rd.collectives.broadcast_object(args.save_dir)"


def indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    "start",
    [
        PARSER + "parser.add_argument('-s', '--save-dir', default=time.strftime('%H'))\n" + PARSE,
        PARSER + STAMP + "parser.add_argument('--save_dir', default='runs/' + stamp)\n" + PARSE,
        PARSER + "name = time.ctime()\nparser.add_argument('--dir', dest='save_dir', default=name)\n" + PARSE,
        "def options():\n"
        + indented(PARSER + "parser.add_argument('--save_dir', default=time.ctime())\nreturn parser.parse_args()")
        + "\n\nargs = options()\n",
    ],
)  # fmt: skip
def test_the_default_of_an_option_comes_from_rank_0(start: str, tmp_path: Path) -> None:
    lines = converted(tmp_path, IMPORTS + start + REST)
    assert lines.index("rd.setup_distributed()") < lines.index(SAVE) < lines.index("torch.manual_seed(0)")
    assert not any("broadcast_object(time" in line for line in lines)


def test_a_value_derived_from_an_early_name_is_broadcast_too(tmp_path: Path) -> None:
    start = STAMP + "folder = os.path.join('runs', stamp)\n" + PARSER + PARSE
    lines = converted(tmp_path, IMPORTS + start + REST.replace("args.save_dir", "folder"))
    joined = lines.index("rd.setup_distributed()")
    assert lines[joined + 1 : joined + 3] == [
        f"{name} = rd.collectives.broadcast_object({name})" for name in ("stamp", "folder")
    ]


@pytest.mark.parametrize("line", ["os.makedirs(stamp)\n", "file = open(stamp, 'w')\n"])
def test_uses_of_an_early_name_are_left_to_the_user(line: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, IMPORTS + STAMP + line + PARSER + PARSE + REST.replace("args.save_dir", "stamp"))
    (finding,) = [finding for finding in result.findings if finding.code == "RF509"]
    assert not finding.edits and finding.place.line == 9


def test_a_name_set_after_the_start_is_broadcast_where_it_is_set(tmp_path: Path) -> None:
    lines = converted(tmp_path, IMPORTS + PARSER + PARSE + STAMP + REST.replace("args.save_dir", "stamp"))
    assert "stamp = rd.collectives.broadcast_object(time.strftime('%H%M%S'))" in lines


CONFIG = """\
import time
from datetime import datetime


def now():
    return f"{datetime.now():%H%M%S}"


class Config:
    folder = "runs/" + datetime.now().strftime("%H%M%S") + "/"


STAMP = time.strftime("%H%M%S")
NAME = now()
"""


@pytest.mark.parametrize(
    ("folder", "given"),
    [
        ("config.Config.folder", 'folder = "runs/" + rd.collectives.broadcast_object(datetime.now()'),
        ("'runs/' + config.STAMP", "STAMP = rd.collectives.broadcast_object(time."),
        ("config.NAME", "return rd.collectives.broadcast_object(f"),
    ],
)
def test_the_group_is_joined_before_an_import_that_names_what_all_read(folder: str, given: str, tmp_path: Path) -> None:
    rest = REST.replace("args.save_dir", folder) + f"model.load_state_dict(torch.load({folder} + 'last.pt'))\n"
    result = conversion(tmp_path, IMPORTS + "import config\n" + rest, config=CONFIG)
    texts = {file.path.stem: file.text for file in result.files}
    assert given in texts["config"]
    assert texts["train"].index("rd.setup_distributed()") < texts["train"].index("import config")


def test_an_import_that_names_what_rank_0_writes_needs_no_group(tmp_path: Path) -> None:
    rest = REST.replace("args.save_dir", "config.Config.folder")
    result = conversion(tmp_path, IMPORTS + "import config\n" + rest, config=CONFIG)
    (text,) = (file.text for file in result.files if file.path.stem == "train")
    assert text.index("rd.setup_distributed()") > text.index("import config")


def test_a_time_that_is_printed_before_the_start_names_nothing(tmp_path: Path) -> None:
    began = "from datetime import datetime\n\nbegan = datetime.now()\n"
    early = began + "print('Started at ' + str(began.strftime('%H:%M')))\n" + PARSER + PARSE
    result = conversion(tmp_path, IMPORTS + early + REST.replace("args.save_dir + ", ""))
    assert not [finding for finding in result.findings if finding.code == "RF509"]
