"""Losses of weighted samples: weights divided by their sum over the batch, times its size, compared with a mean."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import add_runtime, converted
from verify.projects.launch import Launcher

from retrofit.convert.plan import plan_conversion
from retrofit.training import read_project

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(20, 3).double(), (torch.rand(20, 3) < torch.rand(20, 1)).double())
"""
BLOCK = """

def NAME():
    torch.manual_seed(1)
    loader = DataLoader(data, batch_size=6)
    net = nn.Linear(3, 3).double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for inputs, mask in loader:
        out = net(inputs)
        error = (out - inputs) ** 2
        LOSS
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("NAME", loss.item())
    print("NAME", *net.weight.flatten().tolist())


NAME()
"""
SUMS = {
    "mask": ["weights = mask / mask.sum()", "loss = (error * weights).sum()"],
    "inside": ["loss = (error * mask / mask.sum()).sum()"],
    "first": ["loss = (error / mask.sum() * mask).sum()"],
    "guarded": ["weights = mask / (mask.sum() + 1e-6)", "loss = (weights * error).sum()"],
    "counted": ["n = (mask > 0).sum()", "loss = torch.sum(error * mask / n)"],
    "chosen": ["valid = mask > 0", "loss = (error[valid] / valid.sum()).sum()"],
    "of_samples": ["weights = mask.sum(1) / mask.sum()", "loss = (weights * error.mean(1)).sum()"],
    "in_place": ["weights = mask.sum(1)", "weights /= weights.sum()", "loss = torch.dot(weights, error.mean(1))"],
}
MEANS = {
    "after": ["w = mask.sum(1)", "w = w / w.sum() * len(w)", "loss = (w * error.mean(1)).mean()"],
    "before": ["w = mask.sum(1)", "w = w * len(w) / w.sum()", "loss = (w * error.mean(1)).mean()"],
    "size": ["w = mask.sum(1)", "w = w.size(0) * (w / w.sum())", "loss = (w * error.mean(1)).mean()"],
    "shape": [
        "w = mask.sum(1)",
        "w = w / w.sum()",
        "w = w * w.shape[0]",
        "loss = F.mse_loss(out * w[:, None], inputs * w[:, None])",
    ],
}
OF_SIZE = {
    "rows": ["loss = (error * len(inputs)).mean()"],
    "samples": ["loss = (error.mean(1) * inputs.size(0)).mean()"],
    "one_by_one": ["loss = (error * len(inputs)).mean(1).mean()"],
}

COMPARED = {
    "seen": ["seen = mask.sum(0) > 6", "loss = (error.mean(0) * seen).sum()"],
    "columns": [
        "columns = (error * mask).sum(0) / mask.sum(0).clamp(min=1)",
        "loss = columns[mask.sum(0) > 3].mean() if len(columns) else error.sum()",
    ],
    "large": ["loss = error.mean()", "loss = loss * (loss > 0.5)"],
    "small": ["errors = error.mean(1)", "loss = errors[errors < errors.mean()].mean()"],
}


def script(forms: dict[str, list[str]]) -> str:
    return HEAD + "".join(
        BLOCK.replace("LOSS", "\n        ".join(lines)).replace("NAME", name) for name, lines in forms.items()
    )


@pytest.mark.parametrize("form", SUMS)
def test_weights_add_up_to_one_over_all_ranks(form: str, tmp_path: Path) -> None:
    lines = converted(tmp_path, script({form: SUMS[form]}))
    assert any("rd.loss.batch_sum(" in line for line in lines)
    assert "rd.loss.sum_loss(loss).backward()" in lines
    assert "optimizer = torch.optim.SGD(net.parameters(), lr=rd.scaled_lr(0.1))" in lines


@pytest.mark.parametrize("form", MEANS)
def test_weights_are_one_in_the_mean_over_all_ranks(form: str, tmp_path: Path) -> None:
    lines = converted(tmp_path, script({form: MEANS[form]}))
    assert any("rd.loss.batch_count(" in line for line in lines)
    assert "loss.backward()" in lines


@pytest.mark.parametrize("form", COMPARED)
def test_a_sum_that_is_compared_is_of_all_ranks(form: str, tmp_path: Path) -> None:
    lines = converted(tmp_path, script({form: COMPARED[form]}))
    assert any("rd.loss.batch_sum(mask.sum(0)) >" in line or "rd.loss.batch_mean(" in line for line in lines)


@pytest.mark.parametrize("form", OF_SIZE)
def test_a_mean_of_rows_times_their_number_is_a_sum(form: str, tmp_path: Path) -> None:
    assert "rd.loss.sum_loss(loss).backward()" in converted(tmp_path, script({form: OF_SIZE[form]}))


@pytest.mark.parametrize(
    "lines",
    [
        ["loss = (error * mask / mask.sum(1, keepdim=True).clamp(min=1)).sum(1).mean()"],
        ["parts = [(a * b / (b.sum() + 1)).sum() for a, b in zip(error, mask)]", "loss = torch.stack(parts).mean()"],
    ],
)
def test_weights_of_one_sample_are_unchanged(lines: list[str], tmp_path: Path) -> None:
    assert not any("batch_sum" in line for line in converted(tmp_path, script({"own": lines})))


@pytest.mark.parametrize("figure", ["loss.detach() / size", "loss.item() / size"])
def test_a_figure_of_all_ranks_is_divided_by_the_batch_of_all_ranks(figure: str, tmp_path: Path) -> None:
    text = script({"root": ["loss = torch.sqrt(F.mse_loss(out, inputs, reduction='sum'))"]})
    text = text.replace("def root():", "def root(size=6):").replace("loss.item())", f"{figure})")
    lines = converted(tmp_path, text.replace("batch_size=6", "batch_size=size"))
    assert any("/ rd.loss.global_batch(size)" in line for line in lines)


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_training_is_that_of_one_process(world_size: int, tmp_path: Path, launcher: Launcher) -> None:
    (tmp_path / "train.py").write_text(script({**SUMS, **MEANS, **OF_SIZE, **COMPARED}))
    (changed,) = plan_conversion(read_project(tmp_path / "train.py")).files
    (tmp_path / "changed.py").write_text(changed.text)
    add_runtime(tmp_path)
    alone = launcher.run(tmp_path, "train.py", [])
    together = launcher.run(tmp_path, "changed.py", [], world_size=world_size, RETROFIT_BATCH="global")
    assert {*alone["statuses"], *together["statuses"]} == {0}, together["outputs"]
    lines = [
        [line.split() for line in run["outputs"][0].splitlines() if not line.startswith("notice")]
        for run in (alone, together)
    ]
    assert len(lines[0]) == len(lines[1])
    for expected, found in zip(*lines):
        assert found[0] == expected[0]
        assert list(map(float, found[1:])) == pytest.approx(list(map(float, expected[1:])), rel=1e-9, nan_ok=True), (
            found[0]
        )
