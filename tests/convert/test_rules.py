"""Every rule finds its bad example and not its good one, and what it changes ends the finding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from retrofit.cli import main
from retrofit.project import Project, read_project
from retrofit.project.edits import apply_edits
from retrofit.rules import RULES, Finding
from retrofit.rules.documentation import page
from retrofit.rules.placing import placed
from retrofit.verify.causes import CAUSES

ROOT = Path(__file__).resolve().parents[2]
IMPORTS = """\
import argparse
import os
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from tensorboardX import SummaryWriter
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, random_split

import retrofit.distributed as rd


class Net(nn.Linear):
    def __init__(self):
        super().__init__(4, 2)


parser = argparse.ArgumentParser()
total = 0
dataset = TensorDataset(torch.randn(100, 4), torch.randn(100, 2))
test_loader = DataLoader(dataset, 8)
"""
# What an example does not say itself, done well: (a word of it, the lines).
DEFAULTS = [
    ("setup_distributed", "rd.setup_distributed()\n"),
    ("manual_seed", "torch.manual_seed(0)\n"),
    ("loader =", "loader = rd.distribute_loader(DataLoader(dataset, 8, shuffle=True))\n"),
    ("model =", "model = rd.distribute_model(Net())\n"),
    ("criterion =", "criterion = nn.CrossEntropyLoss()\n"),
    ("optimizer =", "optimizer = optim.SGD(model.parameters(), lr=rd.scaled_lr(0.1))\n"),
]
LOOP = """\
for images, labels in loader:
    optimizer.zero_grad()
    criterion(model(images), labels).backward()
    optimizer.step()
"""
LEFT_OUT = {
    "RF605": "setup_distributed",
    "RF607": "setup_distributed",
    "RF108": "manual_seed",
}  # what a rule is about that the example leaves out

# Rules for scripts that are distributed already: what to do is in their help, and a person has to do it.


def script_of(code: str, example: str) -> str:
    """Return a whole script around an example of a rule."""
    first = [lines for word, lines in DEFAULTS if word not in example and word != LEFT_OUT.get(code)]
    later = [lines for lines in first if "model." in lines]  # the optimizer of a model that the example makes
    before = "".join(lines for lines in first if lines not in later)
    loop = "" if "backward" in example else LOOP
    if loop and "model" in example and "model =" not in example:
        return IMPORTS + before + "".join(later) + loop + example
    if not loop:
        return IMPORTS + before + "".join(later) + example
    return IMPORTS + before + example + "".join(later) + loop


def findings_of(code: str, project: Project) -> list[Finding]:
    return placed(project, [finding for finding in RULES[code].find(project) if finding.code == code])


def project_of(folder: Path, text: str) -> Project:
    (folder / "train.py").write_text(text)
    return read_project(folder / "train.py")


@pytest.mark.parametrize("code", RULES)
def test_the_bad_example_is_found_and_the_good_one_is_not(code: str, tmp_path: Path) -> None:
    rule: Any = RULES[code]
    bad = findings_of(code, project_of(tmp_path, script_of(code, rule.BAD)))
    assert bad and all(finding.place.path == "train.py" for finding in bad)
    assert findings_of(code, project_of(tmp_path, script_of(code, rule.GOOD))) == []


@pytest.mark.parametrize("code", RULES)
def test_what_a_rule_changes_ends_its_finding(code: str, tmp_path: Path) -> None:
    rule: Any = RULES[code]
    project = project_of(tmp_path, script_of(code, rule.BAD))
    found = findings_of(code, project)
    edits = [edit for finding in found for edit in finding.edits]
    assert edits or all(finding.help for finding in found), "what changes nothing says what to do"
    if edits:
        changed = project_of(tmp_path, apply_edits(project.entry, edits))
        assert findings_of(code, changed) == []


def test_codes_that_verify_names_mean_the_same_here() -> None:
    common = set(RULES) & set(CAUSES)
    assert len(common) > 5
    assert [code for code in common if CAUSES[code].name != RULES[code].NAME] == []


def test_the_page_of_rules_is_up_to_date() -> None:
    assert (ROOT / "docs" / "rules.md").read_text(encoding="utf-8") == page(), "run python docs/make_rules.py"


def test_rules_are_explained_at_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules"]) == 0
    assert f"RF103  {RULES['RF103'].NAME}" in capsys.readouterr().out
    assert main(["rules", "rf103"]) == 0
    assert RULES["RF103"].WHY in capsys.readouterr().out
    assert main(["rules", "RF999"]) == 2
    assert "no rule RF999; there are RF003" in capsys.readouterr().err
