"""A function is found by every name that a package gives it: what it writes is written by one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrofit.convert.plan import plan_conversion
from retrofit.training import read_project

TRAIN = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
IMPORT

loader = DataLoader(TensorDataset(torch.randn(16, 3)), 4, shuffle=True)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in loader:
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
CALL(model.state_dict(), "last.pt")
"""
FILES = "import torch\nfrom package import other\n\n\ndef keep(state, path):\n    torch.save(state, path)\n"
FROM = "from package import files"
WAYS = {
    "a module of the package": ("", FROM, "files.keep"),
    "a module that the package imports from itself by name": (FROM, FROM, "files.keep"),
    "a module that the package imports from itself": ("from . import files", FROM, "files.keep"),
    "a module next to all its names": ("from .files import *\nfrom . import files", FROM, "files.keep"),
    "all names of a module": ("from .files import *", FROM, "files.keep"),
    "a name in the package": ("from .files import keep", "import package", "package.keep"),
    "a name of another module that has it from the package": ("from .other import files", FROM, "files.keep"),
    "the full name": ("", "import package.files", "package.files.keep"),
    "the full name, without an __init__.py": (None, "import package.files", "package.files.keep"),
    "the full name in a folder below": (None, "import package.inner.files", "package.inner.files.keep"),
    "another name, without an __init__.py": (None, "import package.files as f", "f.keep"),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_save_in_a_package_is_guarded(way: str, tmp_path: Path) -> None:
    init, imported, call = WAYS[way]
    package = tmp_path / "package"
    (package / "inner").mkdir(parents=True)
    (package / "other.py").write_text("from package import files\n")
    for folder in (package, package / "inner"):
        (folder / "files.py").write_text(FILES)
    if init is not None:
        (package / "__init__.py").write_text(init + "\n")
    (tmp_path / "train.py").write_text(TRAIN.replace("IMPORT", imported).replace("CALL", call))
    result = plan_conversion(read_project(tmp_path / "train.py"))
    assert not result.refusals
    (text,) = (file.text for file in result.files if file.path.name == "files.py")
    assert "    if rd.is_main_process():\n        torch.save(state, path)\n" in text


def test_the_running_script_is_imported_by_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "__main__.py").write_text("print('another program')\n")
    (tmp_path / "files.py").write_text("import __main__\n" + FILES.replace("from package import other\n", ""))
    (tmp_path / "train.py").write_text(TRAIN.replace("IMPORT", "import files").replace("CALL", "files.keep"))
    result = plan_conversion(read_project(tmp_path / "train.py"))
    assert not result.refusals and "__main__" not in {one.dotted for one in result.project.modules.unresolved}
