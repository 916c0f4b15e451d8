"""Results of an earlier run that a script removes, keeps or stops at: rank 0 looks, and all do what follows."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import os
import shutil
import sys
from pathlib import Path

import torch
from matplotlib import animation
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def fail(text):
    raise RuntimeError(text)


out = Path(sys.argv[1])
LINES
loader = DataLoader(TensorDataset(torch.randn(32, 3), torch.randn(32, 1)), batch_size=4)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    loss = (model(x) - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save(model.state_dict(), out / "model.pt")
"""
ANSWER = "if rd.output.answer_of_main(out.exists):"
STOPS = {
    "it ends": "if out.exists():\n    sys.exit('done')\nelse:\n    out.mkdir()",
    "it fails": "if out.exists():\n    raise FileExistsError(out)\nelse:\n    out.mkdir()",
    "it fails elsewhere": "if out.exists():\n    fail('there')\nelse:\n    out.mkdir()",
    "it is removed": "if out.exists():\n    shutil.rmtree(out)\n    sys.argv.append('-f')\nout.mkdir()",
}
IN_ONE_LINE = {
    "a conditional": "out.mkdir() if not out.exists() else None",
    "or": "out.exists() or out.mkdir()",
    "and": "not out.exists() and out.mkdir()",
}
MOVED = {
    "a path": ("out.rename(out.with_name('old'))", True),
    "over another": ("out.replace(out.with_name('old'))", True),
    "a text": ("sys.argv[1].replace('a', 'b')", False),
    "a table": ("table = fail.table\ntable.rename(columns={'a': 'b'}, inplace=True)", False),
    "an animation": ("film = animation.FuncAnimation(None, print)\nfilm.save(sys.argv[1], writer='pillow')", True),
}


def text_of(folder: Path, lines: str) -> str:
    result = conversion(folder, SCRIPT.replace("LINES", lines))
    assert not result.refusals
    return next(file.text for file in result.files if file.path.name == "train.py")


@pytest.mark.parametrize("form", STOPS)
def test_rank_0_looks_for_all_where_a_later_process_would_stop(form: str, tmp_path: Path) -> None:
    text = text_of(tmp_path, STOPS[form])
    assert ANSWER in text
    assert "main_process_first" not in text


@pytest.mark.parametrize("form", IN_ONE_LINE)
def test_a_folder_that_a_line_makes_is_rank_0_s(form: str, tmp_path: Path) -> None:
    line = IN_ONE_LINE[form]
    text = text_of(tmp_path, f"{line}\nwidth = 1 if out.exists() else 2")
    assert f"if rd.is_main_process():\n    {line}\n" in text
    assert "width = 1 if rd.output.answer_of_main(out.exists) else 2" in text


def test_what_is_read_where_it_is_there_is_made_by_rank_0_first(tmp_path: Path) -> None:
    lines = "if out.exists():\n    data = torch.load(out)\nelse:\n    data = torch.ones(3)\n    torch.save(data, out)"
    assert "main_process_first" in text_of(tmp_path, lines)


@pytest.mark.parametrize("form", MOVED)
def test_rank_0_alone_moves_and_writes(form: str, tmp_path: Path) -> None:
    lines, is_guarded = MOVED[form]
    last = lines.splitlines()[-1]
    assert (f"if rd.is_main_process():\n    {last}" in text_of(tmp_path, lines)) is is_guarded


@pytest.mark.parametrize(
    "kept, asked",
    [
        ("is_there = out.exists()", "is_there = rd.output.answer_of_main(out.exists)"),
        ("is_there: bool = out.is_dir()", "is_there: bool = rd.output.answer_of_main(out.is_dir)"),
        (
            "is_there = sum(p.exists() for p in [out])",
            "is_there = sum(rd.output.answer_of_main(p.exists) for p in [out])",
        ),
    ],
)
def test_an_answer_that_is_kept_is_rank_0_s(kept: str, asked: str, tmp_path: Path) -> None:
    assert asked in text_of(tmp_path, f"{kept}\nif is_there:\n    sys.exit('done')\nout.mkdir()")


def test_a_variable_that_is_only_declared_keeps_no_answer(tmp_path: Path) -> None:
    lines = "is_there: bool\nis_there = out.exists()\nif is_there:\n    sys.exit('done')\nout.mkdir()"
    assert "is_there = rd.output.answer_of_main(out.exists)" in text_of(tmp_path, lines)


def test_an_answer_that_only_decides_what_rank_0_does_stays(tmp_path: Path) -> None:
    assert "answer_of_main" not in text_of(tmp_path, "is_there = out.exists()\nif not is_there:\n    out.mkdir()")


PATHS = "paths = {'w': out / 'w.pt', 'o': out / 'o.pt'}\n"
KEEP = """
def keep(paths):
    number = sum(p.exists() for p in paths.values())
    if number not in (0, 2):
        raise FileNotFoundError(number)
    torch.save(1, paths['w'])
    torch.save(2, paths['o'])
"""


def test_what_is_asked_in_steps_is_rank_0_s_answer(tmp_path: Path) -> None:
    script = SCRIPT.replace("LINES", PATHS + KEEP).replace(
        "    optimizer.step()\n", "    optimizer.step()\n    keep(paths)\n"
    )
    (file,) = conversion(tmp_path, script).files
    assert "sum(rd.output.answer_of_main(p.exists) for p in paths.values())" in file.text


def test_what_is_asked_for_some_samples_alone_has_each_rank_s_answer(tmp_path: Path) -> None:
    some = "    optimizer.step()\n    if x.max() > 3:\n        keep(paths)\n"
    script = SCRIPT.replace("LINES", PATHS + KEEP).replace("    optimizer.step()\n", some)
    assert "answer_of_main" not in conversion(tmp_path, script).files[0].text


RESTORE = """
def restore(first, second):
    number = sum(p.exists() for p in (first, second))
    if number == 2:
        return torch.load(first)
    keep({'w': first, 'o': second})
"""


def test_a_question_that_leads_to_another_one_is_rank_0_s_too(tmp_path: Path) -> None:
    script = SCRIPT.replace("LINES", PATHS + KEEP + RESTORE + "restore(out / 'w.pt', out / 'o.pt')")
    script = script.replace("    optimizer.step()\n", "    optimizer.step()\n    keep(paths)\n")
    (file,) = conversion(tmp_path, script).files
    assert "number = sum(rd.output.answer_of_main(p.exists) for p in (first, second))" in file.text
