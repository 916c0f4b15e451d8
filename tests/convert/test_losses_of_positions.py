"""Losses of one position after the other of padded samples, each a mean over the samples that are as long."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import add_runtime, conversion, converted
from verify.projects.launch import Launcher

from retrofit.convert.plan import plan_conversion
from retrofit.training import read_project

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
texts, lengths = torch.randint(1, 11, (42, 7)), torch.randint(2, 8, (42,))
lengths[::4] = 7
texts[torch.arange(7)[None] >= lengths[:, None]] = 0


def collate(rows):
    texts = [text[:length] for text, length in rows]
    return nn.utils.rnn.pad_sequence(texts, batch_first=True), torch.stack([length for _, length in rows])


loader = DataLoader(TensorDataset(texts, lengths), batch_size=8)
net = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11)).double()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss(ignore_index=0)
for epoch in range(2):
    total, count = 0.0, 0
    for texts, lengths in loader:
        logits, words, loss = net(texts[:, :-1]), texts[:, 1:], 0
        for step in range(words.shape[1]):
            TERM
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item())
    print(total / max(count, 1))
"""
TERMS = {
    "ignored": "loss = loss + criterion(logits[:, step], words[:, step])",
    "chosen": """\
mask = words[:, step] != 0
            errors = nn.functional.cross_entropy(logits[:, step], words[:, step], reduction="none")
            term = errors.masked_select(mask).mean() if mask.sum() > 0 else logits.sum() * 0
            loss = loss + term
            total += term.item() * mask.sum().item()
            count += mask.sum().item()""",
}
WRITTEN = {"ignored": "rd.loss.distribute_criterion(nn.CrossEntropyLoss(", "chosen": "rd.loss.chosen_mean("}


def script(term: str) -> str:
    return SCRIPT.replace("TERM", TERMS[term])


@pytest.mark.parametrize("term", TERMS)
def test_samples_of_one_length_have_as_many_positions_on_all_ranks(term: str, tmp_path: Path) -> None:
    assert any(WRITTEN[term] in line for line in converted(tmp_path, script(term)))


@pytest.mark.parametrize("term", TERMS)
def test_ranks_whose_samples_may_be_longer_are_not_waited_for(term: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, script(term).replace("batch_size=8", "batch_size=8, collate_fn=collate"))
    assert not result.refusals
    assert any(finding.code == "RF302" and not finding.edits for finding in result.findings)
    (text,) = (file.text for file in result.files if file.path.name == "train.py")
    inside = text[text.index("for step in range") : text.index("optimizer.zero_grad()")]
    assert "rd." not in inside


@pytest.mark.parametrize("term", TERMS)
@pytest.mark.parametrize("world_size", [1, 2])
def test_the_training_is_that_of_one_process(world_size: int, term: str, tmp_path: Path, launcher: Launcher) -> None:
    (tmp_path / "train.py").write_text(script(term))
    (changed,) = plan_conversion(read_project(tmp_path / "train.py")).files
    (tmp_path / "changed.py").write_text(changed.text)
    add_runtime(tmp_path)
    alone = launcher.run(tmp_path, "train.py", [])
    together = launcher.run(tmp_path, "changed.py", [], world_size=world_size, RETROFIT_BATCH="global")
    assert {*alone["statuses"], *together["statuses"]} == {0}, together["outputs"]
    expected, found = (
        [float(line) for line in run["outputs"][0].splitlines() if not line.startswith("notice")]
        for run in (alone, together)
    )
    assert found == pytest.approx(expected, rel=1e-9)
