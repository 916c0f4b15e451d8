"""CUDA that is used before the processes have joined is used on the GPU of each process."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
EARLY

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)


def main(args):
    loader = DataLoader(TensorDataset(torch.randn(16, 4), torch.randn(16, 2)), batch_size=4, shuffle=True)
    model = nn.Linear(4, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for x, y in loader:
        loss = (nn.functional.mse_loss(model(x.cuda()), y.cuda(), reduction="none") * scale).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main(parser.parse_args())
"""
OWN = {
    "a tensor": ("scale = torch.ones(2).cuda()", "scale = torch.ones(2).cuda()"),
    "a device": (
        'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")\nscale = torch.ones(2).to(device)',
        "scale = torch.ones(2).to(device)",
    ),
    "a factory": ('scale = torch.ones(2, device="cuda")', 'scale = torch.ones(2, device="cuda")'),
    "in a branch": (
        "if torch.cuda.is_available():\n    scale = torch.ones(2).cuda()\nelse:\n    scale = 1",
        "if torch.cuda.is_available():",
    ),
    "a default": (
        "def scaled(x=torch.ones(2).cuda()):\n    return x\n\n\nscale = scaled()",
        "def scaled(x=torch.ones(2).cuda()):",
    ),
    "in a class": ("class Scale:\n    x = torch.ones(2).cuda()\n\n\nscale = Scale.x", "class Scale:"),
}
IMPORTED = {
    "a tensor": "import torch\n\nscale = torch.ones(2).cuda()\n",
    "a default": "import torch\n\n\ndef scaled(x=torch.ones(2).cuda()):\n    return x\n\n\nscale = scaled\n",
}
LATER = {
    "in a function": "def scaled():\n    return torch.ones(2).cuda()\n\n\nscale = 1",
    "on the CPU": 'scale = torch.ones(2).to("cpu")',
    "a device alone": 'device = torch.device("cuda")\nscale = 1',
    "another type": "scale = torch.ones(2).to(torch.float32)",
}
CHOICE = "rd.devices.choose_gpu()"


@pytest.mark.parametrize("form", OWN)
def test_each_process_chooses_its_gpu_before_the_script_uses_it(form: str, tmp_path: Path) -> None:
    early, first = OWN[form]
    lines = conversion(tmp_path, SCRIPT.replace("EARLY", early)).files[0].text.splitlines()
    assert lines.count(CHOICE) == 1
    assert lines[lines.index(CHOICE) + 1] == first
    assert lines.index("import multigpu as rd") < lines.index(CHOICE)


@pytest.mark.parametrize("form", IMPORTED)
def test_each_process_chooses_its_gpu_before_a_module_uses_it(form: str, tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(IMPORTED[form])
    lines = conversion(tmp_path, SCRIPT.replace("EARLY", "from parts import scale")).files[0].text.splitlines()
    assert lines.count(CHOICE) == 1
    assert lines[lines.index(CHOICE) + 1] == "from parts import scale"
    assert lines.index("import multigpu as rd") < lines.index(CHOICE)


@pytest.mark.parametrize("form", LATER)
def test_nothing_is_chosen_where_nothing_is_early(form: str, tmp_path: Path) -> None:
    assert CHOICE not in conversion(tmp_path, SCRIPT.replace("EARLY", LATER[form])).files[0].text


def test_nothing_is_chosen_for_what_a_module_does_as_a_script_of_its_own(tmp_path: Path) -> None:
    text = 'import torch\n\nscale = 1\nif __name__ == "__main__":\n    print(torch.ones(2).cuda())\n'
    (tmp_path / "parts.py").write_text(text)
    assert CHOICE not in conversion(tmp_path, SCRIPT.replace("EARLY", "from parts import scale")).files[0].text
