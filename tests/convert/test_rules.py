"""The catalogue of rules, and the examples in their files: invalid ones are found, and what a rule edits ends that.

In an invalid example exactly the lines are found that end with the rule's code, `# RF101`; without any, at least one.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from convert.feature_cases import FEATURE_CASES
from convert.shape_cases import SHAPE_CASES

from retrofit.analysis.edits import apply_edits
from retrofit.cli import main
from retrofit.rules.catalog import CATALOG, DISTRIBUTED, TRACED
from retrofit.rules.documentation import page
from retrofit.rules.edits.resolve import placed
from retrofit.rules.finding import Finding
from retrofit.rules.registry import RULES, find_hazards
from retrofit.training import Project, read_project

ROOT = Path(__file__).resolve().parents[2]
IMPORTS = """\
import argparse
import copy
import os
import random
import time
from contextlib import nullcontext

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tensorboardX import SummaryWriter
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, Subset, TensorDataset
from torch.utils.data import random_split
from tqdm import tqdm

import retrofit.distributed as rd


class Net(nn.Linear):
    def __init__(self):
        super().__init__(4, 2)


parser = argparse.ArgumentParser()
total = 0
dataset = TensorDataset(torch.ones(100, 4), torch.ones(100, 2))
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
}  # what a rule is about that the example leaves out; such a finding is at the start of the script


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


EXAMPLES = {
    kind: [(code, example) for code, rule in RULES.items() for example in getattr(rule, kind)]
    for kind in ("INVALID", "VALID")
}


def numbered(kind: str) -> list[str]:
    """Return an id for each example of a kind: RF103-0, RF103-1."""
    seen: Counter[str] = Counter()
    ids = []
    for code, _ in EXAMPLES[kind]:
        ids.append(f"{code}-{seen[code]}")
        seen[code] += 1
    return ids


def findings_of(code: str, project: Project) -> list[Finding]:
    return placed(project, [finding for finding in RULES[code].find(project) if finding.code == code])


def project_of(folder: Path, text: str) -> Project:
    (folder / "train.py").write_text(text)
    return read_project(folder / "train.py")


@pytest.mark.parametrize(("code", "example"), EXAMPLES["INVALID"], ids=numbered("INVALID"))
def test_an_invalid_example_is_found_and_no_longer_after_the_edit(code: str, example: str, tmp_path: Path) -> None:
    script = script_of(code, example)
    project = project_of(tmp_path, script)
    found = findings_of(code, project)
    assert found and all(finding.place.path == "train.py" and finding.help for finding in found)
    lines = {finding.place.line for finding in found}
    first = script[: script.index(example)].count("\n") + 1
    own = range(first, first + example.count("\n"))
    marked = {line for line, text in zip(own, example.splitlines()) if text.endswith(f"  # {code}")}
    assert lines == marked if marked else code in LEFT_OUT or lines & set(own)
    edits = [edit for finding in found for edit in finding.edits]
    if edits:
        changed = project_of(tmp_path, apply_edits(project.entry, edits))
        assert findings_of(code, changed) == []


@pytest.mark.parametrize(("code", "example"), EXAMPLES["VALID"], ids=numbered("VALID"))
def test_a_valid_example_is_not_found(code: str, example: str, tmp_path: Path) -> None:
    assert findings_of(code, project_of(tmp_path, script_of(code, example))) == []


def test_every_rule_file_has_the_name_of_its_rule() -> None:
    names = {code: rule.__name__.rpartition(".")[2].replace("_", "-") for code, rule in RULES.items()}
    assert names == {code: CATALOG[code].name for code in RULES}
    files = {path.stem for path in (ROOT / "retrofit" / "rules").rglob("*.py") if "\nRULE = " in path.read_text()}
    assert files == {name.replace("-", "_") for name in names.values()}


def test_the_catalogue_says_the_bad_pattern_what_it_does_and_what_to_write() -> None:
    assert len({rule.name for rule in CATALOG.values()}) == len(CATALOG)
    for code, rule in CATALOG.items():
        assert rule.code == code and re.fullmatch(r"RF[0-6]\d\d", code)
        assert re.fullmatch(r"[a-z]+(-[a-z]+)+", rule.name)
        assert rule.why[0].isupper() or rule.why.startswith("'")
        assert rule.why.endswith(".") and rule.remedy and rule.in_torch
        assert not re.search(r"\brd\.", rule.in_torch), "plain torch"


def test_remedies_and_examples_name_functions_that_exist() -> None:
    import retrofit.distributed as rd

    texts = [(rule.code, rule.remedy) for rule in CATALOG.values()]
    for code, text in (*texts, *EXAMPLES["INVALID"], *EXAMPLES["VALID"]):
        for name in re.findall(r"\brd\.(\w+)", text):
            assert hasattr(rd, name), (code, name)


def test_codes_without_a_rule_file_are_reported_by_verify() -> None:
    checks = "".join(path.read_text() for path in (ROOT / "retrofit" / "verify").rglob("*.py"))
    traced = {code for code, rule in CATALOG.items() if rule.found_in == TRACED}
    assert set(CATALOG) - set(RULES) == traced
    assert [code for code in traced if f'"{code}"' not in checks] == []


def test_rules_for_distributed_scripts_find_nothing_in_the_golden_projects() -> None:
    rules = [RULES[code] for code, rule in CATALOG.items() if rule.found_in == DISTRIBUTED]
    for case in (*SHAPE_CASES, *FEATURE_CASES):
        project = read_project(ROOT / "tests" / "convert" / "projects" / case.name / case.entry)
        assert [str(finding) for rule in rules for finding in rule.find(project)] == [], case.name


def test_check_gives_the_remedy_in_the_words_of_the_script(tmp_path: Path) -> None:
    by_hand = "import torch.distributed as dist\ndist.init_process_group()\nmodel = Net()\n" + DEFAULTS[4][1]
    loader = "loader = DataLoader(dataset, 8, shuffle=True)\n"
    text = IMPORTS + by_hand + loader + DEFAULTS[5][1].replace("rd.scaled_lr(0.1)", "0.1") + LOOP
    for script, remedy in (
        (text, CATALOG["RF103"].in_torch),
        (text.replace("dist.init_process_group", "rd.setup_distributed"), CATALOG["RF103"].remedy),
    ):
        found = find_hazards(project_of(tmp_path, script))
        assert remedy in [finding.help for finding in found if finding.code == "RF103"]


def test_the_page_of_rules_is_up_to_date() -> None:
    assert (ROOT / "docs" / "rules.md").read_text(encoding="utf-8") == page(), "run python docs/make_rules.py"


def test_rules_are_explained_at_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules"]) == 0
    assert f"RF103  {CATALOG['RF103'].name}" in capsys.readouterr().out
    for code in ("rf103", "RF110"):
        assert main(["rules", code]) == 0
        assert CATALOG[code.upper()].why in capsys.readouterr().out
    assert main(["rules", "RF999"]) == 2
    assert "no rule RF999; there are RF001" in capsys.readouterr().err
