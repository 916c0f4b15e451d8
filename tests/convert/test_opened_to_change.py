"""Files that are opened to be changed and are read from: every process needs what they hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import h5py
import torch
from torch.utils.data import DataLoader, TensorDataset

parts = []


def load(path):
    BODY


torch.manual_seed(0)
loader = DataLoader(TensorDataset(*load("samples.h5")), batch_size=8)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    loss = (model(x) - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
PARTS = "parts.append(x)\n    return torch.from_numpy(x), torch.from_numpy(y)"
ONLY_READ = {
    "taken apart": 'f = h5py.File(path, "r+")\n    x, y = f["x"][:], f["y"][:]\n    f.close()',
    "by with": 'with h5py.File(path, "a") as f:\n        x, y = f["x"][...], f["y"][:]',
    "as arrays": 'f = h5py.File(path, mode="r+")\n    x, y = np.array(f["x"]), np.asarray(f.get("y"))',
    "of another type": 'f = h5py.File(path, "r+")\n    x, y = f["x"][:].astype("f4"), f["y"][:].astype("f4")',
    "groups": 'f = h5py.File(path, "r+")\n    group = f["train"]\n    x, y = group["x"][:], group["y"][:]',
    "each": 'f = h5py.File(path, "r+")\n    x, y = (f[name][:] for name in f.keys())',
}
CHANGED = {
    "an entry": 'f = h5py.File(path, "r+")\n    x, y = f["x"][:], f["y"][:]\n    f["seen"] = 1',
    "an array": 'f = h5py.File(path, "r+")\n    x, y = f["x"], f["y"][:]\n    x[0] = 0\n    x = x[:]',
    "elsewhere": 'f = h5py.File(path, "r+")\n    x, y = f["x"][:], f["y"][:]\n    mark(f)',
}


def script(body: str) -> str:
    return SCRIPT.replace("BODY", f"{body}\n    {PARTS}")


@pytest.mark.parametrize("way", ONLY_READ)
def test_a_file_that_is_only_read_is_opened_for_reading(way: str, tmp_path: Path) -> None:
    text = conversion(tmp_path, script(ONLY_READ[way])).files[0].text
    opened = next(line for line in text.splitlines() if "h5py.File" in line)
    assert "'r')" in opened and "path_on_main" not in opened


@pytest.mark.parametrize("way", CHANGED)
def test_a_file_that_is_read_and_changed_is_left_to_the_user(way: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, script(CHANGED[way]))
    (finding,) = (finding for finding in result.findings if finding.code == "RF501")
    assert not finding.edits and "every process reads" in finding.message
    assert "path_on_main" not in result.files[0].text


def test_a_file_that_is_only_filled_is_rank_0s(tmp_path: Path) -> None:
    body = 'f = h5py.File(path, "r+")\n    f["seen"] = 1\n    f.close()\n    x = y = torch.zeros(8, 4).numpy()'
    assert 'h5py.File(rd.path_on_main(path), "r+")' in conversion(tmp_path, script(body)).files[0].text
