"""An error of retrofit itself is one message, with the place, the rule and a file that has the traceback."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from convert.conversion import conversion

from retrofit.analysis.files.source import read_source

TRAINING = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

{imports}

loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=8, shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        {shown}
"""

# A rule with a fault: no rule is known to have one.
FAULTY = """\
import sys
from retrofit import cli
from retrofit.rules.data import loader_not_sharded
def find(project):
    source, node = project.entry, project.entry.tree.body[4]
    yield {}[source]
find.__globals__["RULE"] = loader_not_sharded.RULE
loader_not_sharded.find = find
sys.exit(cli.main())
"""


@pytest.mark.parametrize("command", ["check", "convert"])
def test_a_fault_of_a_rule_is_one_message_and_the_traceback_is_in_a_file(tmp_path: Path, command: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING.format(imports="import os", shown="print(loss.item())"))
    before, more = script.read_bytes(), ["--write"] if command == "convert" else []
    started = [sys.executable, "-c", FAULTY, command, str(script), *more]
    ended = subprocess.run(started, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and len(ended.stderr.splitlines()) == 2, ended.stderr
    first, second = ended.stderr.splitlines()
    assert "error: train.py:7: this is an error of retrofit in RF103 loader-not-sharded (KeyError: Source(" in first
    assert "nodes" not in first and first.endswith("nothing was written")
    kept = Path(re.search(r"in (\S+);", second).group(1))  # type: ignore[union-attr]
    assert kept.read_text().startswith("Traceback") and "in find" in kept.read_text()
    kept.unlink()
    assert script.read_bytes() == before and sorted(tmp_path.iterdir()) == [script]


SUMMARY = """\
def summary(rows):
    found = {}
    for level in (2, 3):
        high = [row for row in rows if row > level]
        if high:
            if level == 3:
                return {}
            found[level] = len(high)
    return found
"""


@pytest.mark.parametrize(("name", "taken"), [("rd", ""), ("multigpu", "rd = 3\n")])
def test_a_file_may_need_the_runtime_for_nothing_but_a_decision(tmp_path: Path, name: str, taken: str) -> None:
    script = TRAINING.format(imports="import parts\nrows = []", shown="rows.append(model(x).argmax().item())")
    result = conversion(tmp_path, f"{script}print(parts.summary(rows))\n", parts=taken + SUMMARY)
    assert not result.refusals
    (text,) = (file.text for file in result.files if file.path.name == "parts.py")
    assert f"if {name}.collectives.broadcast_object(bool(high)):" in text and text.startswith("import multigpu")


def test_a_source_is_shown_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x = 1\n" * 100)
    assert repr(read_source(tmp_path / "train.py", "train.py")) == "Source('train.py')"
