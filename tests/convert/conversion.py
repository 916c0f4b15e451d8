"""Converting a script that a test has written."""

from __future__ import annotations

from pathlib import Path

from retrofit.convert.plan import Conversion, plan_conversion
from retrofit.project import read_project


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
