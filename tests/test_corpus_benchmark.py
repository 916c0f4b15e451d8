"""The benchmark of real projects: what it observes of a run, what it compares, and its page; on a made-up project."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

from corpus_compare import default_mode, foreign_writes, parity, samples_once
from corpus_page import ROOT, Row, summary

pytestmark = pytest.mark.usefixtures("forked_python")

SCRIPT = """
import torch
import utils
from torch.utils.data import DataLoader, TensorDataset

class Pictures(TensorDataset):
    pass

train, test = Pictures(torch.randn(24, 3)), Pictures(torch.randn(24, 3))
mean = sum(batch.sum() for batch, in DataLoader(train, 8))
model = torch.nn.Linear(3, 1)
for batch, in DataLoader(train, batch_size=6):
    model(batch).sum().backward()
torch.save(model.state_dict(), "model.pt")
print(utils.__name__, len(DataLoader(test, 6)), "argument")
"""


@pytest.mark.parametrize("factor", [1, 2])
def test_the_observer_notes_the_samples_of_each_step_and_what_is_saved(factor: int, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(SCRIPT)
    (project / "utils.py").write_text("__name__ = 'of the project'\n")
    environ = {**os.environ, "OBSERVED": str(tmp_path / "log"), "ODD_EVALUATION": "1", "RANK": "1"}
    environ.update(BATCH_FACTOR=str(factor), TRAINING_LENGTHS="8")
    command = [sys.executable, str(ROOT / "benchmarks" / "corpus_observer.py"), "train.py"]
    ended = subprocess.run(command, cwd=project, env=environ, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["of", "the", "project", "1", "argument"]
    *steps, saved = (json.loads(line) for line in (tmp_path / "log.rank1").read_text().splitlines())
    # The sets are cut from 3 batches of 8 to 1, and from 4 batches of 6 to 1: 3 or 2 ranks would share them evenly.
    batches = [list(range(6)), [6, 7]] if factor == 1 else [list(range(8))]
    assert [step["idx"] for step in steps] == batches
    assert saved == {"ev": "save", "path": str(project / "model.pt")}


def steps(losses: list[float], gradients: list[float], rate: float = 0.1) -> list[dict]:
    rows = zip(losses, gradients)
    return [event for a, b in rows for event in ({"loss": a}, {"step": 0, "gnorm": b, "pnorm": 1.0 + b, "lr": [rate]})]


def test_losses_are_compared_as_means_and_as_sums() -> None:
    one = {0: steps([2.0, 3.0], [1.0, 2.0])}
    assert parity(one, {0: steps([1.0, 2.0], [1.0, 2.0]), 1: steps([3.0, 4.0], [1.0, 2.0])}) == "yes"
    assert parity(one, {0: steps([0.5, 1.0], [1.0, 2.0]), 1: steps([1.5, 2.0], [1.0, 2.0])}) == "yes (sum)"
    assert parity(one, dict.fromkeys((0, 1), steps([2.0, 3.0], [0.5, 2.0]))) == "loss 0e+00, weights 5e-01"


def test_the_default_mode_is_compared_with_the_larger_batch() -> None:
    one, larger = {0: steps([2.0], [1.0])}, {0: steps([2.0], [4.0])}
    assert default_mode(one, larger, {0: steps([2.0], [4.0], 0.2)}) == "gradient yes, lr x 2"
    assert default_mode(one, larger, {0: steps([2.0], [2.0])}) == "gradient 5e-01, lr x 1"
    assert default_mode(one, {}, {}) == "?"


def test_samples_are_those_of_training_steps() -> None:
    def trained(*batches: list[int] | None) -> list[dict]:
        return [{"ev": "backward", "n": 8, "idx": batch} for batch in batches]

    one = {0: trained([0, 1, 2, 3], None, [4, 5, 6, 7])}
    assert samples_once(one, {0: trained([0, 2], None, [4, 6]), 1: trained([1, 3], None, [5, 7])}) == "yes"
    assert samples_once(one, dict.fromkeys((0, 1), trained([0, 1], [4, 5]))) == "NO, first in step 0 of 2"


def test_a_file_that_another_rank_saves_is_seen() -> None:
    saves = {0: [{"ev": "save", "path": "/run/a.pt"}], 1: [{"ev": "save", "path": "/run/b.pt"}]}
    writes = {1: [{"ev": "open", "cwd": "/run", "t": ["c.txt"]}, {"ev": "open", "cwd": "/", "t": ["/dev/null"]}]}
    assert foreign_writes(writes, saves, "/run") == ["/run/b.pt", "/run/c.txt"]


def test_a_list_without_a_conversion_has_a_summary() -> None:
    assert summary([Row("a", "refused"), Row("b", "original fails")]) == "0 of 2 projects converted; 1 are refused"
