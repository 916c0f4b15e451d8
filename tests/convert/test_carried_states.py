"""A state that a model gives and gets with the next batch is found, however the training hands it on."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

SCRIPT = """\
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(64, 5, 4), torch.randn(64, 5, 2)), batch_size=8)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x, state=None):
        out, state = self.rnn(x, state)
        return self.head(out), state


def forget(state):
    return tuple(value.detach() for value in state)


def step(x, state):
    out, state = model(x, state)
    return out, forget(state)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    START
    for number, (x, y) in enumerate(loader):
        STEP
        loss = (out - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
CARRIED = {
    "by two names": ("h = c = torch.zeros(1, 8, 8)", "out, (h, c) = model(x, (h.detach(), c.detach()))"),
    "by a starred name": ("state = ()", "found = model(x, *state)\nout, *state = found[0], forget(found[1])"),
    "of an index": ("state = None", "found = model(x, state)\nout, state = found[0], forget(found[1])"),
    "by a function": ("state = None", "out, state = step(x, state)"),
    "as the last of a list": ("states = [None]", "out, state = model(x, states[-1])\nstates.append(forget(state))"),
    "in an entry": ("states = {0: None}", "out, state = model(x, states[0])\nstates[0] = forget(state)"),
    "begun again for another size": (
        "state = None",
        "if state is not None and state[0].shape[1] != len(x):\n    state = None\n"
        "out, state = model(x, state)\nstate = forget(state)",
    ),
}
ROWS = {
    "plain": ("state = None", "out, state = model(x, state)\nstate = forget(state)"),
    "by its keyword": ("state = None", "out, state = model(x, state=state)\nstate = forget(state)"),
    "by two names": (
        "h = c = None",
        "out, (h, c) = model(x, None if h is None else (h, c))\nh, c = h.detach(), c.detach()",
    ),
    "begun again at times": (
        "state = None",
        "if number % 3 == 0:\n    state = None\nout, state = model(x, state)\nstate = forget(state)",
    ),
    "cut off its history before": (
        "state = None",
        "if state is not None:\n    state = tuple(value.detach() for value in state)\nout, state = model(x, state)",
    ),
}  # fmt: skip
CHANGED = {
    "set to 0": "out, state = model(x, state)\nstate = forget(state)\nstate[0][:, number] = 0",
    "a mean of the batch": "out, state = model(x, state)\nstate = tuple(v.detach().mean(1, True) for v in state)",
    "halved": "out, state = model(x, state)\nstate = tuple(value.detach() * keep for value in state)",
    "an entry": "out, state = model(x, state)\nstate[0] = state[0].detach()",
}  # fmt: skip
NOT_CARRIED = {
    "begun for each batch": ("state = None", "state = None\nout, state = model(x, state)"),
    "begun in both branches": (
        "state = None",
        "if number % 3 == 0:\n    state = None\n"
        "else:\n    state = (torch.ones(1, len(x), 8), torch.ones(1, len(x), 8))\n"
        "out, state = model(x, state)",
    ),
    "under another name": ("state = None", "out, last = model(x, state)"),
}


def script(start: str, step: str) -> str:
    lines = "\n".join(" " * 8 + line for line in step.split("\n"))
    return SCRIPT.replace("START", start).replace("        STEP", lines)


@pytest.mark.parametrize("way", CARRIED)
def test_a_state_that_is_carried_is_refused(tmp_path: Path, way: str) -> None:
    refusals = conversion(tmp_path, script(*CARRIED[way])).refusals
    assert {finding.kind for finding in refusals} == {"carried-state"}


@pytest.mark.parametrize("way", ROWS)
def test_each_process_keeps_its_rows_of_a_state(tmp_path: Path, way: str) -> None:
    assert "rd.data.keep_total_batch()" in converted(tmp_path, script(*ROWS[way]))


def test_a_state_begins_for_the_rows_of_a_process(tmp_path: Path) -> None:
    start = "state = (torch.zeros(1, size, 8), torch.zeros(1, size, 8))"
    text = script(start, ROWS["plain"][1]).replace("batch_size=8", "batch_size=size")
    result = conversion(tmp_path, text.replace("import sys\n", "import sys\n\nsize = 8\n"))
    part = "torch.zeros(1, rd.data.own_batch_size(size), 8)"
    assert f"state = ({part}, {part})" in result.files[0].text
    assert not [finding for finding in result.findings if finding.code == "RF112"]


@pytest.mark.parametrize("way", CHANGED)
def test_a_state_that_is_changed_otherwise_is_refused(tmp_path: Path, way: str) -> None:
    refusals = conversion(tmp_path, script("state = None", CHANGED[way])).refusals
    assert {finding.kind for finding in refusals} <= {"carried-state", "samples-kept"} and refusals


STATISTIC = """\
        out, state = self.rnn(x, None)
        mean = out.mean((0, 1)).detach() + (0 if mean is None else mean)
        return self.head(out - mean), mean
"""


def test_a_statistic_that_a_model_returns_is_not_a_state_of_rows(tmp_path: Path) -> None:
    forward = "    def forward(self, x, mean=None):\n" + STATISTIC + "\n\n"
    text = script("mean = None", "out, mean = model(x, mean)")
    start, end = text.index("    def forward"), text.index("def forget")
    result = conversion(tmp_path, text[:start] + forward + text[end:])
    assert not [file for file in result.files if "keep_total_batch" in file.text]


@pytest.mark.parametrize("way", NOT_CARRIED)
def test_a_state_of_one_batch_is_not(tmp_path: Path, way: str) -> None:
    assert not conversion(tmp_path, script(*NOT_CARRIED[way])).refusals


BRANCHES = "if len(sys.argv) > 1:\n    out, state = step(x, state)\n{}:\n    out, state = step(x[:4], state)"


def test_what_every_branch_does_is_refused(tmp_path: Path) -> None:
    result = conversion(tmp_path, script("state = None", BRANCHES.format("else")))
    assert len(result.refusals) == 2


def test_each_branch_that_an_option_leaves_out_ends_at_run_time(tmp_path: Path) -> None:
    step = BRANCHES.format("elif len(sys.argv) > 2") + "\nelse:\n    out, _ = model(x)"
    result = conversion(tmp_path, script("state = None", step))
    assert not result.refusals
    assert "".join(file.text for file in result.files).count("one_process_only(") == 2
