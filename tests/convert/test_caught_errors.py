"""A step that fails on one process ends the job of several, and is left out by a single one as before."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import add_runtime, conversion, converted
from verify.projects.launch import Launcher

HEAD = """\
import contextlib

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.arange(16.0)[:, None]), 4, shuffle=True)
model = nn.Linear(1, 1)
optimizer = optim.SGD(model.parameters(), lr=1e-3)


def take(x):
    if (x == 3).any():
        raise RuntimeError("CUDA out of memory")
    return x


"""
LOOP = "for epoch in range(2):\n    for (x,) in loader:\n"
STEP = "optimizer.zero_grad()\nmodel(take(x)).mean().backward()\noptimizer.step()\n"
PROBED = "optimizer.zero_grad()\ny.mean().backward()\noptimizer.step()\n"
WAITS = "if rd.get_world_size() > 1:"


def indented(text: str, depth: int) -> str:
    return "".join(" " * 4 * depth + line + "\n" for line in text.splitlines())


def caught(handlers: str, body: str = STEP, after: str = "") -> str:
    return HEAD + LOOP + indented("try:\n" + indented(body, 1) + handlers + "\n" + after, 2)


@pytest.mark.parametrize(
    "handlers",
    [
        "except RuntimeError as error:\n    print('skipped')\n    continue",
        "except RuntimeError: continue",
        "except:\n    # not enough memory\n    torch.cuda.empty_cache()",
        "except (ValueError, TypeError) as e:\n    if 'memory' in str(e):\n        x\n    else:\n        raise",
    ],
)
def test_an_error_in_a_step_is_raised_again_where_other_ranks_wait(handlers: str, tmp_path: Path) -> None:
    lines = converted(tmp_path, caught(handlers))
    at = lines.index(WAITS)
    assert lines[at - 1].startswith("except") and lines[at + 1].startswith("raise  #")


def test_a_batch_with_a_failed_forward_pass_skips_the_step(tmp_path: Path) -> None:
    assert WAITS in converted(tmp_path, caught("except ValueError:\n    y = x", "y = model(x)\n", STEP))


@pytest.mark.parametrize(
    ("handler", "header", "name"),
    [
        ("except:", "except BaseException as rd_error:", "rd_error"),
        ("except Exception:", "except Exception as rd_error:", "rd_error"),
        ("except Exception as error:", "except Exception as error:", "error"),
    ],
)
def test_a_feature_that_all_data_lack_does_not_end_the_job(
    handler: str, header: str, name: str, tmp_path: Path
) -> None:
    lines = converted(tmp_path, caught(f"{handler}\n    y = model(x)", "y = model(x, x.position)\n", PROBED))
    at = lines.index(header)
    kinds = "(AttributeError, KeyError, TypeError)"
    assert lines[at + 1] == f"if rd.get_world_size() > 1 and not isinstance({name}, {kinds}):"
    assert lines[at + 2].startswith("raise  #")


def test_one_process_and_several_train_without_the_feature(tmp_path: Path, launcher: Launcher) -> None:
    script = caught("except:\n    y = model(x)", "y = model(x, x.position)\n", PROBED) + "print(model.weight.item())\n"
    (file,) = conversion(tmp_path, script).files
    (tmp_path / "after.py").write_text(file.text)
    add_runtime(tmp_path)
    before, after = (launcher.run(tmp_path, name, [])["outputs"] for name in ("train.py", "after.py"))
    assert before == after
    assert launcher.run(tmp_path, "after.py", [], world_size=2)["statuses"] == [0, 0]


def test_suppressed_errors_are_left_to_the_user(tmp_path: Path) -> None:
    script = HEAD + LOOP + indented("with contextlib.suppress(RuntimeError):\n" + indented(STEP, 1), 2)
    (finding,) = conversion(tmp_path, script).refusals
    assert finding.code == "RF405" and finding.place.line == 21


def test_one_process_skips_the_batch_and_several_stop(tmp_path: Path, launcher: Launcher) -> None:
    script = (
        caught("except RuntimeError:\n    print('skipped', flush=True)\n    continue") + "print(model.weight.item())\n"
    )
    (file,) = conversion(tmp_path, script).files
    (tmp_path / "after.py").write_text(file.text)
    add_runtime(tmp_path)
    before, after = (launcher.run(tmp_path, name, [])["outputs"] for name in ("train.py", "after.py"))
    assert before == after and before[0].count("skipped") == 2
    ended = launcher.run(tmp_path, "after.py", [], world_size=2)
    assert 0 not in ended["statuses"] and "CUDA out of memory" in "".join(ended["outputs"])
