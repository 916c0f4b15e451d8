"""What one process does alone must not hold up the others: no model and no evaluation runs on rank 0 only."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrofit.convert.plan import Conversion, plan_conversion
from retrofit.training import read_project

SCRIPT = """\
import os
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter
from torchvision.utils import save_image

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(16, 3)), 4, shuffle=True)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
writer = SummaryWriter("log")
best = 9.0
saved, names = [], iter(map(str, range(9)))


def test():
    return model(torch.ones(1, 3)).item()


for epoch in range(2):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    LINES
"""


def conversion_of(folder: Path, *lines: str) -> Conversion:
    (folder / "train.py").write_text(SCRIPT.replace("    LINES\n", "".join(f"    {line}\n" for line in lines)))
    return plan_conversion(read_project(folder / "train.py"))


def lines_of(conversion: Conversion) -> list[str]:
    (file,) = conversion.files
    return [line.strip() for line in file.text.splitlines()]


def test_an_evaluation_in_a_condition_still_runs_on_every_rank(tmp_path: Path) -> None:
    conversion = conversion_of(tmp_path, "if test() < best:", "    torch.save(model.state_dict(), 'best.pt')")
    position = lines_of(conversion).index("if test() < best:")
    assert lines_of(conversion)[position + 1 : position + 3] == [
        "if rd.is_main_process():",
        "torch.save(model.state_dict(), 'best.pt')",
    ]


def test_a_condition_without_side_effects_gets_the_rank_guard(tmp_path: Path) -> None:
    conversion = conversion_of(tmp_path, "if not os.path.exists('out'):", "    os.makedirs('out')")
    assert "if rd.is_main_process() and not os.path.exists('out'):" in lines_of(conversion)


def test_a_model_called_inside_a_writing_statement_runs_on_every_rank(tmp_path: Path) -> None:
    conversion = conversion_of(tmp_path, "save_image(model(torch.ones(1, 3)), 'sample.png')")
    assert "rd.output.on_main_process(save_image, model(torch.ones(1, 3)), 'sample.png')" in lines_of(conversion)


def test_a_model_called_inside_a_compound_writing_statement_is_refused(tmp_path: Path) -> None:
    conversion = conversion_of(tmp_path, "saved = save_image(model(torch.ones(1, 3)), 'sample.png')")
    (refusal,) = conversion.refusals
    assert refusal.refusal.startswith("the model runs inside a statement that writes; put its output into a variable")
    assert refusal.place.line == 27


def test_a_writer_that_runs_the_model_gets_the_model_itself(tmp_path: Path) -> None:
    conversion = conversion_of(tmp_path, "writer.add_graph(model, torch.ones(1, 3))")
    assert "rd.model.run_alone(writer.add_graph, model, torch.ones(1, 3))" in lines_of(conversion)


@pytest.mark.parametrize("package", ["torchinfo", "pytorch_model_summary", "torchsummaryX"])
def test_a_summary_of_the_model_is_told_of_the_model_itself(tmp_path: Path, package: str) -> None:
    conversion = conversion_of(tmp_path, f"from {package} import summary", "summary(model, torch.ones(1, 3))")
    assert "rd.model.run_alone(summary, model, torch.ones(1, 3))" in lines_of(conversion)


@pytest.mark.parametrize(
    ("made", "is_guarded"),
    [
        ("import peft; other = peft.get_peft_model(model, None)", True),
        ("import own; other = own.made_elsewhere", False),
    ],
)
def test_what_a_method_of_a_library_prints_is_printed_once(made: str, is_guarded: bool, tmp_path: Path) -> None:
    lines = [*made.split("; "), "other.print_all()"]
    found = [line.strip() for line in lines_of(conversion_of(tmp_path, *lines))]
    assert (found[found.index("other.print_all()") - 1] == "if rd.is_main_process():") is is_guarded


def test_a_guarded_statement_is_unchanged(tmp_path: Path) -> None:
    test = 'if int(os.environ.get("RANK", 0)) == 0:'
    conversion = conversion_of(tmp_path, test, "    torch.save(model.state_dict(), 'a.pt')")
    assert test in lines_of(conversion)
    assert "if rd.is_main_process():" not in lines_of(conversion)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            ["saved.append(f'{epoch}.pt')", "while len(saved) > 1:", "    os.remove(saved.pop(0))"],
            "rd.output.on_main_process(os.remove, saved.pop(0))",
        ),
        (
            ["saved.append(f'{epoch}.pt')", "if len(saved) > 1:", "    os.remove(saved.pop(0))"],
            "rd.output.on_main_process(os.remove, saved.pop(0))",
        ),
        (
            ["torch.save(model.state_dict(), next(names))"],
            "rd.output.on_main_process(torch.save, model.state_dict(), next(names))",
        ),
        (["Path(saved.pop()).unlink()"], "rd.output.on_main_process(Path(saved.pop()).unlink)"),
    ],
)
def test_every_rank_takes_a_file_name_out_of_its_list(lines: list[str], expected: str, tmp_path: Path) -> None:
    conversion = conversion_of(tmp_path, *lines)
    assert expected in lines_of(conversion) and "if rd.is_main_process():" not in lines_of(conversion)
