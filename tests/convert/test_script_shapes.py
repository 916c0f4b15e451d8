"""Scripts whose parts are in unusual places: names that shadow modules, choices of GPUs, files of other scripts."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

HEAD = """\
import os

import torch
from tensorboardX import SummaryWriter
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
dataset = TensorDataset(torch.randn(16, 3))
"""
REST = """\
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(dataset, 4, shuffle=True)
for (x,) in loader:
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
"""
MODEL = "model = torch.nn.Linear(3, 1)\n"
NET = "import torch\n\n\nclass Net(torch.nn.Linear):\n    pass\n"


def script(*lines: str, model: str = MODEL) -> str:
    return HEAD + "".join(f"{line}\n" for line in lines) + model + REST


def test_a_model_with_the_name_of_its_module(tmp_path: Path) -> None:
    lines = converted(tmp_path, "import model\n" + script(model="model = model.Net(3, 1)\n"), model=NET)
    assert "model = rd.distribute_model(model)" in lines


def test_a_file_of_one_process_is_synced_by_that_process(tmp_path: Path) -> None:
    # The others' is the null device, which refuses it.
    lines = converted(tmp_path, script("log = open('log', 'w')", "os.fsync(log.fileno())"))
    assert lines[lines.index("os.fsync(log.fileno())") - 1] == "if rd.is_main_process():"


def test_statements_for_the_case_without_data_parallel_keep_their_place(tmp_path: Path) -> None:
    wrap = ["if torch.cuda.device_count() > 1:", "    model = torch.nn.DataParallel(model)", "else:"]
    wrap += [
        "    # the first",
        "    names = []",
        "    # a comment",
        "    for name in ['a', 'b']:",
        "        names.append(name)",
        "",
    ]
    start = HEAD + MODEL + "".join(f"{line}\n" for line in wrap) + REST
    (file,) = conversion(tmp_path, start).files
    wrap[1] = "    model = rd.model.data_parallel(torch.nn.DataParallel, model)"
    assert "\n".join(wrap[:-1]) in file.text, "the rest of the branches is as it was"


def test_a_replaced_stdout_is_recognised_as_the_console(tmp_path: Path) -> None:
    logger = ["class Log:", "    def __init__(self, path):", "        self.file = open(path, 'w')"]
    logger += ["    def write(self, text):", "        self.file.write(text)"]
    logger += ["    def flush(self):", "        os.fsync(self.file.fileno())", "sys.stdout = Log('log')"]
    lines = converted(tmp_path, "import sys\n" + script(*logger))
    assert lines[lines.index("os.fsync(self.file.fileno())") - 1] == "if rd.is_main_process():"


def test_a_summary_writer_of_the_project_is_built_by_one_process(tmp_path: Path) -> None:
    lines = ["class Board(SummaryWriter):", "    pass", "board = Board('log')"]
    assert "board = rd.output.on_main_process(Board, 'log')" in converted(tmp_path, script(*lines))


def in_function(*lines: str) -> str:
    """Return a script that does everything in `main`, behind `lines`."""
    body = "".join(f"    {line}\n" for line in (*lines, *(MODEL + REST).splitlines()))
    return HEAD + f"\n\ndef main():\n{body}\n\nif __name__ == '__main__':\n    main()\n"


def test_the_process_group_starts_after_a_choice_of_gpus_in_a_function(tmp_path: Path) -> None:
    lines = converted(tmp_path, in_function("os.environ['CUDA_VISIBLE_DEVICES'] = '0,1'"))
    position = lines.index("rd.setup_distributed()")
    assert lines[position - 1] == "os.environ['CUDA_VISIBLE_DEVICES'] = rd.devices.visible_gpus('0,1')"


def test_the_process_group_starts_before_writes_that_precede_the_choice_of_gpus(tmp_path: Path) -> None:
    choice = "os.environ['CUDA_VISIBLE_DEVICES'] = '0,1'"
    lines = converted(tmp_path, in_function("os.makedirs('log')", choice))
    assert lines.index("rd.setup_distributed()") < lines.index("if rd.is_main_process():")


def test_the_training_of_another_script_is_unchanged(tmp_path: Path) -> None:
    start = script("from other import double").replace("model(x)", "double(model(x))")
    other = "def double(x):\n    return 2 * x\n\n\n" + in_function()
    result = conversion(tmp_path, start, other=other)
    assert not result.refusals
    assert [file.path.name for file in result.files] == ["train.py"]


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ("isinstance(model, torch.nn.DataParallel)", "rd.model.is_data_parallel(model)"),
        ("hasattr(model, 'module')", "hasattr(model, 'module')"),
        ("isinstance(args, argparse.Namespace)", "isinstance(args, argparse.Namespace)"),
        ("args.hasattr", "args.hasattr"),
    ],
)
def test_a_module_that_is_asked_for(asked: str, answered: str, tmp_path: Path) -> None:
    lines = ["import argparse", "args = argparse.Namespace(hasattr=True)"]
    model = f"model = torch.nn.DataParallel(torch.nn.Linear(3, 1))\nplain = model.module if {asked} else model\n"
    lines = converted(tmp_path, script(*lines, model=model))
    assert f"plain = model.module if {answered} else model" in lines
    assert "model = rd.model.data_parallel(torch.nn.DataParallel, torch.nn.Linear(3, 1))" in lines


def test_nothing_is_inserted_after_the_end_of_the_program(tmp_path: Path) -> None:
    ending = "from sys import exit as leave\n"
    lines = converted(tmp_path, ending + script() + "leave(0)\n")
    assert lines[-1] == "leave(0)" and "rd.cleanup_distributed()" not in lines
    lines = converted(tmp_path, ending + script() + "print('sys.exit')\n")
    assert lines[-2:] == ["print('sys.exit')", "rd.cleanup_distributed()"]


@pytest.mark.parametrize(
    ("own", "is_seen"), [("error", True), ("parse_args", False)], ids=["a parser's error", "its own parse_args"]
)
def test_a_class_derived_from_the_parser_parses(own: str, is_seen: bool, tmp_path: Path) -> None:
    parser = (
        "import argparse\n\n\nclass Options(argparse.ArgumentParser):\n"
        f"    def {own}(self, message=None):\n        return argparse.Namespace()\n\n\n"
        "parser = Options()\nargs = parser.parse_args()\n"
    )
    lines = converted(tmp_path, parser + script())
    assert ("rd.add_runtime_flags(parser)" in lines) is is_seen
