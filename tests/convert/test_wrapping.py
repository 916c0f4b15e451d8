"""Whether an expression is the model inside DDP or the wrapper, by the order of statements."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from retrofit.analysis.scopes import own_nodes
from retrofit.training import read_project

HEAD = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

net = torch.nn.Linear(2, 2)
distributed = len("several") > 1
"""


def wrap_state(folder: Path, *lines: str) -> str:
    """Return the state of the model in `look(model)`: wrapped, taken out of its wrapper, or neither."""
    (folder / "train.py").write_text(HEAD + "".join(f"{line}\n" for line in lines))
    project = read_project(folder / "train.py")
    for scope in project.analysis.scopes():
        for node in own_nodes(scope.node):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "look":
                if project.wrapping.wrapped(node.args[0], scope):
                    return "wrapped"
                return "bare" if project.wrapping.bare(node.args[0], scope) else ""
    raise AssertionError("no call of look()")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["model = DDP(net)", "look(model)"], "wrapped"),
        (["model = DDP(net)", "look(net)"], "bare"),
        (["model = DDP(net)", "look(model.module)"], "bare"),
        (["look(net)", "net = DDP(net)"], "bare"),
        (["net = DDP(net)", "look(net)"], "wrapped"),
        (["if distributed:", "    net = DDP(net)", "look(net)"], "wrapped"),
        (["inner = net", "net = DDP(net)", "look(inner)"], "bare"),
        (["model = DDP(", "    net,", "    static_graph=look(net))"], "bare"),
        (["model = DDP(net)", "def f(m):", "    look(m)", "f(model)"], "wrapped"),
        (["model = DDP(net)", "def f(m):", "    look(m)", "f(model)", "f(net)"], ""),
        (["def build():", "    m = net.cuda()", "    return DDP(m), 1", "m, n = build()", "look(m)"], "wrapped"),
        (["model = DDP(net)", "if distributed:", "    m = model.module", "else:", "    m = model", "look(m)"], ""),
        (["class T:", "  def __init__(s):", "    s.m = DDP(net)", "  def f(s):", "    look(s.m)", "T().f()"],
         "wrapped"),
        (["make = lambda m: DDP(m)", "model = make(net)", "look(model)"], "wrapped"),
        (["look(net)"], ""),
    ],
)  # fmt: skip
def test_where_the_model_is_wrapped(lines: list[str], expected: str, tmp_path: Path) -> None:
    assert wrap_state(tmp_path, *lines) == expected
