"""Code that nothing in a project calls by name, and that runs all the same: commands, training that others start."""

from __future__ import annotations

from pathlib import Path

from retrofit.convert.plan import plan_conversion
from retrofit.rules.registry import find_all
from retrofit.training import read_project

TRAINING = """\
import click
import torch
from torch.utils.data import DataLoader, TensorDataset
{before}
def train(lr):
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(torch.randn(16, 3)), 4, shuffle=True)
    model = torch.nn.DataParallel(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for (x,) in loader:
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
    torch.save(model.module.state_dict(), "model.pt")

{after}
"""
COMMAND = '@click.group()\ndef main():\n    pass\n\n\n@main.command()\n@click.option("--lr", default=0.1)'


def converted(folder: Path, text: str) -> str:
    script = folder / "train.py"
    script.write_text(text)
    (file,) = plan_conversion(read_project(script)).files
    script.write_text(file.text)
    assert list(find_all(read_project(script))) == []
    return file.text


def test_the_training_of_a_click_command(tmp_path: Path) -> None:
    text = converted(tmp_path, TRAINING.format(before=COMMAND, after='if __name__ == "__main__":\n    main()'))
    assert "    if rd.is_main_process():\n        torch.save(model.module.state_dict()" in text
    wrapped = "    model = rd.model.data_parallel(torch.nn.DataParallel, torch.nn.Linear(3, 1))\n"
    assert wrapped + "    model = rd.distribute_model(model)\n" in text


def test_a_training_function_called_only_from_other_files(tmp_path: Path) -> None:
    text = converted(tmp_path, TRAINING.format(before="", after=""))
    assert "    if rd.is_main_process():\n        torch.save(model.module.state_dict()" in text


def test_loaders_of_unknown_origin_in_a_dict(tmp_path: Path) -> None:
    text = TRAINING.format(before="import data", after='train(data.arguments(), loaders["train"])')
    text = text.replace("def train(lr):", "loaders = data.loaders()\n\n\ndef train(lr, loader):")
    text = converted(tmp_path, "".join(line for line in text.splitlines(True) if "= DataLoader" not in line))
    assert "loaders['train'] = rd.distribute_loader(loaders['train'])" in text
