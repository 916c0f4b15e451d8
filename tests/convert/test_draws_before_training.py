"""Draws before the training from a stream that nothing seeds: the same on all ranks, or listed."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

IMPORTS = """\
import random
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
"""
SPLIT = """\
def split(rows):
    random.shuffle(rows)
    return rows[:24], rows[24:]
"""
PAIRS = """\
class Pairs(Dataset):
    def __init__(self, n):
        self.other = np.random.permutation(n)

    def __len__(self):
        return len(self.other)

    def __getitem__(self, i):
        return torch.ones(1), torch.full((1,), float(self.other[i]))
"""
MAIN = """\
def main():
    torch.manual_seed(0)
    {made}
    loader = DataLoader(dataset, batch_size=4, shuffle=True)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


main()
"""
ROWS = "dataset = TensorDataset(torch.tensor(rows[0]).float()[:, None], torch.ones(24, 1))"


def both(folder: Path, text: str, **modules: str) -> tuple[str, int]:
    """Return the converted files, and how many draws are listed."""
    result = conversion(folder, text, **modules)
    listed = [finding for finding in result.findings if finding.code == "RF108" and not finding.edits]
    return "".join(file.text for file in result.files), len(listed)


@pytest.mark.parametrize(
    "defined, made",
    [
        (SPLIT, f"rows = split(list(range(32)))\n    {ROWS}"),
        (PAIRS, "dataset = Pairs(24)"),
        (f"{PAIRS}\n\ndef data():\n    return Pairs(24)\n", "dataset = data()"),
    ],
    ids=["split by a function", "drawn by a data set", "drawn by a data set in a function"],
)
def test_all_ranks_draw_what_called_functions_draw(defined: str, made: str, tmp_path: Path) -> None:
    text, listed = both(tmp_path, f"{IMPORTS}\n\n{defined}\n\n{MAIN.format(made=made)}")
    assert "rd.share_random_state()" in text and not listed


LIBRARIES = """\
import pandas as pd
from sklearn import model_selection, utils
from sklearn.model_selection import KFold
"""
OF_ROWS = "dataset = TensorDataset(torch.tensor(rows).float()[:, None], torch.ones(len(rows), 1))"
BY_LIBRARIES = {
    "a split": "rows, held = model_selection.train_test_split(list(range(32)){state})",
    "an order": "rows = utils.shuffle(list(range(32)){state})",
    "a table": "rows = list(pd.read_csv('rows.csv').sample(frac=1{state})['row'])",
    "folds": "rows = list(next(KFold(4, shuffle=True{state}).split(range(32)))[0])",
}


@pytest.mark.parametrize("kind", BY_LIBRARIES)
@pytest.mark.parametrize("state, is_shared", [("", True), (", random_state=None", True), (", random_state=3", False)])
def test_all_ranks_draw_what_a_library_draws_without_a_state(
    kind: str, state: str, is_shared: bool, tmp_path: Path
) -> None:
    made = f"{BY_LIBRARIES[kind].format(state=state)}\n    {OF_ROWS}"
    text, _ = both(tmp_path, f"{IMPORTS}{LIBRARIES}\n\n{MAIN.format(made=made)}")
    assert ("rd.share_random_state()" in text) == is_shared


def test_folds_without_a_state_are_the_same_on_all_ranks(tmp_path: Path) -> None:
    loop = "for fold, (rows, held) in enumerate(KFold(4, shuffle=True).split(range(32))):"
    body = MAIN.format(made=loop).partition("    loader =")
    inner = f"    {OF_ROWS}\n{body[1]}{body[2]}".partition("\n\n\n")
    indented = "".join(f"    {line}\n" for line in f"    {inner[0].lstrip()}".splitlines())
    text, _ = both(tmp_path, f"{IMPORTS}{LIBRARIES}\n\n{body[0]}{indented}\n\n{inner[2]}")
    assert "rd.share_random_state()" in text


def test_a_seeded_draw_of_a_called_function_needs_nothing(tmp_path: Path) -> None:
    seeded = SPLIT.replace("    random.shuffle", "    random.seed(1)\n    random.shuffle")
    made = f"rows = split(list(range(32)))\n    {ROWS}"
    text, listed = both(tmp_path, f"{IMPORTS}\n\n{seeded}\n\n{MAIN.format(made=made)}")
    assert "rd.share_random_state()" not in text and not listed


@pytest.mark.parametrize("seed, count", [("", 1), ("random.seed(1)\n", 0)])
def test_a_draw_of_an_imported_module_is_listed(seed: str, count: int, tmp_path: Path) -> None:
    module = f"import random\n{seed}rows = [list(range(24))]\nrandom.shuffle(rows[0])\n"
    _, listed = both(tmp_path, f"{IMPORTS}from samples import rows\n\n\n{MAIN.format(made=ROWS)}", samples=module)
    assert listed == count


def test_a_draw_before_the_options_are_parsed_is_listed(tmp_path: Path) -> None:
    drawn = "rows = [list(range(24))]\nrandom.shuffle(rows[0])\n"
    parsed = f"import argparse\n{drawn}args = argparse.ArgumentParser().parse_args()\n"
    _, listed = both(tmp_path, f"{IMPORTS}{parsed}\n\n{MAIN.format(made=ROWS)}")
    assert listed == 1


def test_a_training_that_joins_the_processes_itself_draws_nothing_early(tmp_path: Path) -> None:
    drawn = MAIN.format(made=f"options = parser.parse_args()\n    rows = [list(range(24))]\n    {ROWS}")
    drawn = drawn.replace(
        "        optimizer.zero_grad()\n", "        x = x * random.random()\n        optimizer.zero_grad()\n"
    )
    parser = "import argparse\n\nparser = argparse.ArgumentParser()\n"
    _, listed = both(tmp_path, f"import random\n{IMPORTS}{parser}\n\n{drawn}")
    assert listed == 0
