"""Converting a script that a test has written."""

from __future__ import annotations

import shutil
from pathlib import Path

from retrofit.convert.added.runtime_file import TEXT
from retrofit.convert.plan import Conversion, plan_conversion
from retrofit.training import read_project


def conversion(folder: Path, script: str, **modules: str) -> Conversion:
    """Return the conversion of `script`, which may import `modules`, the texts of other files in `folder`."""
    for name, text in {"train": script, **modules}.items():
        (folder / f"{name}.py").write_text(text)
    return plan_conversion(read_project(folder / "train.py"))


def converted(folder: Path, script: str, **modules: str) -> list[str]:
    """Return the lines of the converted script, without indentation."""
    result = conversion(folder, script, **modules)
    assert not result.refusals
    (text,) = (file.text for file in result.files if file.path.name == "train.py")
    return [line.strip() for line in text.splitlines()]


def add_runtime(folder: Path) -> None:
    """Put the runtime file where a converted script in `folder` imports it from."""
    shutil.copy(TEXT, folder)


def let_every_process_write(path: Path) -> None:
    """Take the guard off the one os.write of a converted script, for a test that compares what processes write."""
    before, output = path.read_text().split("os.write(")
    guard = "if rd.is_main_process():"
    assert before.rstrip().endswith(guard), "only rank 0 is to write"
    path.write_text("if True:".join(before.rsplit(guard, 1)) + "os.write(" + output)
