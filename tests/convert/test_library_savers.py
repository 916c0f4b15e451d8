"""Libraries that write files of their own choice: rank 0 alone calls them, all ranks get what they return."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrofit.convert.plan import plan_conversion
from retrofit.training import read_project

SCRIPT = """\
import torch
from charts import viz
from loguru import logger
from timm.utils import CheckpointSaver, get_outdir, update_summary
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(9, 3)), 4)
saver = CheckpointSaver(model, optimizer)
for epoch in range(3):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    LINE
"""


def converted(folder: Path, line: str) -> list[str]:
    (folder / "train.py").write_text(SCRIPT.replace("LINE", line))
    conversion = plan_conversion(read_project(folder / "train.py"))
    assert not conversion.refusals
    (file,) = conversion.files
    return [written.strip() for written in file.text.splitlines()]


@pytest.mark.parametrize(
    "line",
    [
        "saver.save_checkpoint(epoch, metric=1.0)",
        "saver.save_recovery(epoch)",
        "viz.save_figure('weights.png', model.weight)",
        "update_summary(epoch, {}, {}, 'summary.csv')",
    ],
)
def test_rank_0_alone_calls_what_writes(tmp_path: Path, line: str) -> None:
    lines = converted(tmp_path, line)
    assert lines[lines.index(line) - 1] == "if rd.is_main_process():"


@pytest.mark.parametrize(
    "before, after",
    [
        (
            "best, at = saver.save_checkpoint(epoch, metric=1.0)",
            "best, at = rd.output.answer_of_main(saver.save_checkpoint, epoch, metric=1.0)",
        ),
        (
            "folder = get_outdir('out', 'run', inc=True)",
            "folder = rd.output.answer_of_main(get_outdir, 'out', 'run', inc=True)",
        ),
    ],
)
def test_all_ranks_get_what_it_returns(tmp_path: Path, before: str, after: str) -> None:
    assert after in converted(tmp_path, before)


def test_a_logger_of_loguru_is_quiet_on_other_ranks(tmp_path: Path) -> None:
    assert "rd.output.quiet_logging()" in converted(tmp_path, "logger.info('epoch {}', epoch)")
    assert "rd.output.quiet_logging()" not in converted(tmp_path, "pass")


@pytest.mark.parametrize(
    "library, line",
    [
        ("from plyfile import PlyData", "PlyData([vertices]).write(path)"),
        ("from plyfile import PlyData", "cloud = PlyData.read(path); cloud.write(path)"),
        ("import xml.etree.ElementTree as ET", "tree = ET.ElementTree(root); tree.write(path)"),
        ("import trimesh", "trimesh.Trimesh(vertices, faces).export(path)"),
        ("import pydicom", "image = pydicom.dcmread(path); image.save_as(path)"),
        ("import ase.io", "ase.io.write(path, atoms)"),
        ("import imageio", "imageio.mimwrite(path, frames, fps=30)"),
        ("import imageio.v3 as iio", "iio.imwrite(path, frames)"),
        ("import subprocess", "subprocess.check_output('cp -r {} copy'.format(path), shell=True)"),
        ("from tqdm.autonotebook import tqdm", "tqdm.write(path)"),
        ("from rdkit import Chem", "Chem.MolToMolFile(molecule, path)"),
    ],
)
def test_objects_of_libraries_are_written_by_rank_0(tmp_path: Path, library: str, line: str) -> None:
    text = "\n    ".join(line.split("; "))
    (tmp_path / "train.py").write_text(f"{library}\n{SCRIPT.replace('LINE', text)}")
    (file,) = plan_conversion(read_project(tmp_path / "train.py")).files
    lines = [written.strip() for written in file.text.splitlines()]
    assert lines[lines.index(line.split("; ")[-1]) - 1] == "if rd.is_main_process():"
