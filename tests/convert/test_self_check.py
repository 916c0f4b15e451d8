"""The converted text is read again before anything is written: what is found is an error that names both rules."""

from __future__ import annotations

import ast
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from convert.test_placement import script_of

from retrofit.analysis.edits import Edit, surround
from retrofit.analysis.files.runtime_names import MODULES, canonical
from retrofit.cli import main
from retrofit.convert.plan import plan_conversion
from retrofit.convert.self_check import ConversionError
from retrofit.rules.catalog import CATALOG
from retrofit.rules.edits import resolve
from retrofit.rules.finding import found
from retrofit.rules.registry import RULES, find_hazards
from retrofit.training import read_project
from retrofit.training.distributed.placement import Placed
from retrofit.training.torch_api.distributed import EVERY_RANK

RUNTIME = Path(__file__).resolve().parents[2] / "retrofit" / "distributed"
SCRIPT = script_of("if step % 2 == 0:", "    wandb.log({'loss': loss.item()})")


def in_place(analysis: Any, reductions: Any, guarded: Any) -> Placed:
    """Place reductions as a placement with an error would: under the guard."""
    edits = {r: tuple(surround(r.source, r.value, f"{r.function}(", ")")) for r in reductions}
    return Placed(edits)


def script_in(folder: Path) -> Path:
    (folder / "train.py").write_text(SCRIPT)
    return folder / "train.py"


def test_a_collective_under_a_guard_is_an_error_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = script_in(tmp_path)
    monkeypatch.setattr(resolve, "place_reductions", in_place)
    for arguments in (["--write"], []):
        assert main(["convert", str(script), *arguments]) == 2
        out, err = capsys.readouterr()
        assert out == "" and "error of retrofit, nothing was written" in err
        (line,) = (line for line in err.splitlines() if "RF402" in line)
        assert "train.py:26:" in line and "RF402 collective-on-some-ranks is found" in line
        assert "that RF401 metric-per-rank changed" in line
    assert script.read_text() == SCRIPT and [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_a_finding_that_remains_after_its_rule_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def finds_again(project: Any) -> Any:
        source = project.entry
        statement = next(node for node in source.tree.body if isinstance(node, ast.Assign))
        start = source.span(statement)[0]
        yield found(CATALOG["RF308"], source, statement, "still here", [Edit(source, start, start, "total_2 = 0\n")])

    monkeypatch.setattr(RULES["RF308"], "find", finds_again)
    with pytest.raises(
        ConversionError, match=r"train.py:\d+:1: RF308 mean-divided-by-batch is found .* RF308.* changed: still"
    ):
        plan_conversion(read_project(script_in(tmp_path)))


def test_invalid_python_is_an_error_that_names_the_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(project: Any) -> Any:
        source = project.entry
        start = source.span(source.tree.body[-1])[0]
        yield found(CATALOG["RF308"], source, source.tree.body[-1], "", [Edit(source, start, start, "def (\n")])

    monkeypatch.setattr(RULES["RF308"], "find", breaks)
    with pytest.raises(
        ValueError, match=r"train.py:\d+: .*not valid Python.*RF308 mean-divided-by-batch.*error of retrofit"
    ):
        plan_conversion(read_project(script_in(tmp_path)))


def test_overlapping_edits_name_both_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def collides(project: Any) -> Any:
        source = project.entry
        node = next(n for n in source.nodes if isinstance(n, ast.Attribute) and n.attr == "item")
        start, end = source.span(node)
        yield found(CATALOG["RF308"], source, node, "", [Edit(source, start - 5, end, "x")])

    monkeypatch.setattr(RULES["RF308"], "find", collides)
    with pytest.raises(ValueError, match=r"train.py:22: RF\d+ .* and RF\d+ .* want the same text; .*error of retrofit"):
        plan_conversion(read_project(script_in(tmp_path)))


def test_a_project_is_read_from_text_that_is_not_written_yet(tmp_path: Path) -> None:
    (tmp_path / "part.py").write_text("x = 1\n")
    (tmp_path / "train.py").write_text("import part\n")
    overlay = {tmp_path.resolve() / "part.py": b"y = 2\n"}
    project = read_project(tmp_path / "train.py").with_texts(overlay)
    assert [source.text for source in project.sources] == ["import part\n", "y = 2\n"]


def test_the_table_of_collectives_is_what_the_docstrings_say() -> None:
    import retrofit.distributed as rd

    said = set()
    for path in RUNTIME.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
                text = " ".join((ast.get_docstring(node) or "").split())
                said |= {node.name} if "ollective: every rank" in text else set()
    public = {name for module in (rd, *(getattr(rd, name) for name in MODULES)) for name in module.__all__}
    known = {name.rpartition(".")[2] for name in EVERY_RANK if name.startswith("retrofit.distributed.")}
    assert len(said) > 30 and said & public <= known <= said


def test_the_known_runtime_modules_are_its_top_level_modules() -> None:
    import retrofit.distributed as rd

    assert len(rd.__all__) <= 25
    folder = {path.stem for path in [*RUNTIME.iterdir(), *RUNTIME.glob("*/*.py")] if not path.name.startswith("_")}
    exported = {name for name in folder if name in vars(rd) and hasattr(getattr(rd, name), "__all__")}
    assert exported == MODULES


def test_every_path_to_a_function_of_the_runtime_is_known_and_can_be_taken() -> None:
    paths = [".".join(path.relative_to(RUNTIME).with_suffix("").parts) for path in RUNTIME.rglob("[!_]*.py")]
    assert {"ddp.model", "process.process_group", "loss"} <= {*paths}
    for module in [*paths, *MODULES]:
        function = next(name for name in vars(resolve_name(f"retrofit.distributed.{module}")) if name[0] != "_")
        assert canonical(f"retrofit.distributed.{module}.{function}") == f"retrofit.distributed.{function}"
    for wrong in ("ddp.distribute_model", "process.barrier", "gone.barrier"):
        assert canonical(f"retrofit.distributed.{wrong}") == f"retrofit.distributed.{wrong}"


RANKS = """\
import torch
import retrofit.distributed as rd
from torch.utils.data import DataLoader

rd.setup_distributed()
torch.manual_seed(0)


def reduced(loss):
    return rd.reduce_loss(loss)


def show(loss):
    rd.print_main(rd.reduce_loss(loss))


loader = rd.distribute_loader(DataLoader(torch.randn(20, 4), 4, shuffle=True))
model = rd.distribute_model(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=rd.scaled_lr(0.1))
for epoch in range(3):
    rd.set_epoch(loader, epoch)
    for x in loader:
        optimizer.zero_grad()
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        EXAMPLE
rd.cleanup_distributed()
"""


def codes(folder: Path, example: str) -> list[str]:
    (folder / "train.py").write_text(RANKS.replace("EXAMPLE", example.replace("\n", "\n" + 8 * " ")))
    return [finding.code for finding in find_hazards(read_project(folder / "train.py"))]


@pytest.mark.parametrize(
    "example",
    [
        "if rd.is_main_process(): rd.print_main(rd.reduce_loss(loss))",
        "rd.print_main(rd.reduce_loss(loss) if rd.is_main_process() else 0)",
        "means = [1 for _ in range(3) if rd.is_main_process() and rd.collectives.on_any_rank(True)]",
        "if rd.is_main_process():\n    pass\nelse:\n    break\nrd.barrier()",
        "with torch.no_grad():\n    if rd.get_rank() > 0:\n        continue\nrd.barrier()",
        "if rd.is_main_process():\n    rd.save_checkpoint('x.pt', {})",
        "if rd.get_rank() == 0 and epoch == 2: rd.sum_over_ranks(1)",
        "if rd.get_rank() < 2: rd.distribute_loader(loader)",
        "if x.max() > 0:\n    rd.reduce_loss(loss)",
        "if x.sum() > 0:\n    reduced(loss)",
    ],
)
def test_a_collective_that_some_ranks_leave_out_is_found(example: str, tmp_path: Path) -> None:
    assert [code for code in codes(tmp_path, example) if code != "RF407"] == ["RF402"]


@pytest.mark.parametrize(
    "example",
    [
        "rd.print_main(rd.reduce_loss(loss))",
        "show(loss)",
        "global_loss = rd.reduce_loss(loss)\nif rd.is_main_process():\n    rd.print_main(global_loss)",
        "if rd.is_main_process():\n    rd.barrier()\nelse:\n    rd.barrier()",
        "if rd.get_world_size() > 1:\n    rd.barrier()",
        "rd.output.on_main_process(print, rd.reduce_loss(loss))",
        "if rd.collectives.on_any_rank(torch.rand(1).item() > 0.5):\n    rd.barrier()",
        "if x.max() > 0:\n    rd.reduce_loss(loss)\nelse:\n    rd.reduce_loss(loss * 0)",
        "if x.is_cuda:\n    rd.barrier()",
        "top = x.max()\ntorch.distributed.all_reduce(top)\nif top > 1:\n    rd.barrier()",
    ],
)
def test_a_collective_of_every_rank_is_not_found(example: str, tmp_path: Path) -> None:
    assert codes(tmp_path, example) == []


CACHED = """
class Samples(Dataset):
    def __init__(self, ids_file):
        if os.path.exists(ids_file):
            self.ids = torch.load(ids_file)
        else:
            self.ids = self.prepare(ids_file)

    def prepare(self, ids_file):
        ids = list(range(16))
        torch.save(ids, ids_file)
        return ids

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return torch.full((3,), float(self.ids[index]))


"""
SOUND = """\
import os
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
{before}
loader = DataLoader({data}, 4, shuffle=True)
model = nn.Linear(3, 1)
{after}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x in loader:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
"""
CHANGED_ONCE = {
    "a cache that one rank makes first": (CACHED, "Samples('ids.pt')", "", "with rd.output.main_process_first():"),
    "the class of a model that may be a DataParallel": (
        "",
        "torch.randn(16, 3)",
        "if len(sys.argv) > 1:\n    model = nn.DataParallel(model)\nname = type(model).__name__",
        "name = type(rd.model.script_model(model)).__name__",
    ),
}


@pytest.mark.parametrize("name", CHANGED_ONCE)
def test_a_finding_is_gone_after_its_edit(name: str, tmp_path: Path) -> None:
    before, data, after, wanted = CHANGED_ONCE[name]
    script = tmp_path / "train.py"
    script.write_text(SOUND.format(before=before, data=data, after=after))
    (file,) = plan_conversion(read_project(script)).files
    assert wanted in file.text
    script.write_text(file.text)
    assert find_hazards(read_project(script)) == []
