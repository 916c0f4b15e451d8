"""Files and folders that have a name of each process: runs named by the time, and what is renamed by the first."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

TRAINING = """\
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=8)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    built("op", ["train.py"])
    loss = (model(x) - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
HEAD = """\
import glob
import os
import shutil
import sys
import tempfile
import time
import uuid

import torch
from torch.utils.data import DataLoader, TensorDataset
"""
NEW_RUN = """

def new_folder(name):
    MADE
    os.makedirs(folder)
    return folder


def built(name, sources):
    pass


settings = sys.argv[1]
if os.path.isdir(settings):
    path = glob.glob(os.path.join(settings, "*.yml"))[0]
    folder = new_folder("again")
    os.symlink(settings, os.path.join(folder, "before"))
else:
    path = settings
    folder = new_folder("new")
    shutil.copytree("models", os.path.join(folder, "models"))
shutil.copyfile(path, os.path.join(folder, "settings.yml"))
"""
BUILT = """

def built(name, sources):
    folder = os.path.join("build", name)
    if not os.path.isdir(folder):
        MADE
        for file in sources:
            shutil.copyfile(file, os.path.join(own, os.path.basename(file)))
        try:
            RENAMED
        except CAUGHT:
            shutil.rmtree(own)
    return folder


"""


@pytest.mark.parametrize(
    "made",
    [
        'folder = "runs/" + name + time.strftime("%H%M%S")',
        'day = time.strftime("%H%M%S", time.localtime())\n    folder = os.path.join("runs", f"{name}_{day}")',
        'folder = f"runs/{name}-{uuid.uuid4().hex}"',
    ],
)
def test_other_processes_do_not_find_a_run_named_by_the_time(made: str, tmp_path: Path) -> None:
    text = conversion(tmp_path, HEAD + NEW_RUN.replace("MADE", made) + TRAINING).files[0].text
    assert "main_process_first" not in text
    assert "rd.collectives.broadcast_object(" in text
    assert "    if rd.is_main_process():\n        os.makedirs(folder)\n    return folder" in text


def built(made: str, renamed: str, caught: str) -> str:
    return HEAD + BUILT.replace("MADE", made).replace("RENAMED", renamed).replace("CAUGHT", caught) + TRAINING


@pytest.mark.parametrize("caught", ["OSError", "(FileExistsError, PermissionError)", "Exception"])
@pytest.mark.parametrize(
    "made, renamed",
    [
        ('own = f"build/{uuid.uuid4().hex}"; os.makedirs(own)', "os.replace(own, folder)"),
        ('own = os.path.join("build", str(os.getpid())); os.mkdir(own)', "os.rename(own, folder)"),
        ('own = tempfile.mkdtemp(dir="build")', "shutil.move(own, folder)"),
    ],
)
def test_what_the_first_process_renames_is_left_to_all(made: str, renamed: str, caught: str, tmp_path: Path) -> None:
    text = conversion(tmp_path, built(made, renamed, caught)).files[0].text
    assert "is_main_process" not in text


def test_a_name_that_all_processes_have_is_made_by_rank_0(tmp_path: Path) -> None:
    text = conversion(tmp_path, built('own = "build/new"; os.makedirs(own)', "os.replace(own, folder)", "OSError"))
    assert "rd.is_main_process()" in text.files[0].text
