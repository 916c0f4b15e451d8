"""Figures that a training loop leaves in an object, and that functions handed to it show, are listed or reduced."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import threading
from collections import defaultdict
from functools import partial

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(25, 4), torch.randint(0, 3, (25,)))
loader = DataLoader(data, 6)


class Trainer:
    handlers = []

    def __init__(self, model):
        self.model, self.loader = model, loader
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.loss, self.peak, self.steps = None, None, 0
        self.callbacks = CALLBACKS

    def on(self, event, function):
        self.callbacks.setdefault(event, []).append(function)

    def decorator(self, event):
        def put(function):
            self.callbacks[event] = self.callbacks.get(event, []) + [function]
            return function

        return put

    def fire(self, event):
        for function in self.callbacks.get(event, []):
            function(self)

    @classmethod
    def share(cls, function):
        cls.handlers.append(function)

    def shared(self, trainer):
        for function in Trainer.handlers:
            function(trainer)

    def ask(self, event):
        for callback in self.callbacks:
            method = getattr(callback, event, None)
            if method is not None:
                method(self)

    def run(self):
        for x, y in self.loader:
            outputs = self.model(x)
            self.loss = self.criterion(outputs, y)
            self.hits = (outputs.argmax(1) == y).float().mean()
            self.peak = outputs.max()
            self.optimizer.zero_grad()
            self.loss.backward()
            self.optimizer.step()
            self.steps += 1
            FIRE


class Board:
    last = None

    def __init__(self):
        self.seen = []

    def note(self, trainer):
        self.seen.append(trainer.peak.item())

    def show(self, trainer=None):
        print("board", self.seen)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.show()


def show(trainer):
    print("loss", trainer.loss.item())


def show_hits(trainer):
    print("hits", trainer.hits.item())


def show_steps(trainer):
    print("steps", trainer.steps, len(trainer.loader), trainer.optimizer.param_groups[0]["lr"])


def with_name(name, trainer):
    print(name, trainer.peak.item())


def every(number):
    def show_peak(trainer):
        if trainer.steps % number == 0:
            print("every", trainer.peak.item())

    return show_peak


trainer = Trainer(nn.Linear(4, 3))
board = Board()
START
trainer.run()
END
"""
LOSS, BOARD = ['print("loss", trainer.loss.item())'], ['print("board", self.seen)']
OWN = "function(self)"


def lines_of(folder: Path, callbacks: str, fire: str, start: str, end: str) -> tuple[list[str], list[str]]:
    """Return the lines of the converted script, and those of them that are listed."""
    script = SCRIPT.replace("CALLBACKS", callbacks).replace("FIRE", fire.replace("\n", "\n            "))
    result = conversion(folder, script.replace("START", start).replace("END", end))
    assert not result.refusals
    (file,) = (file for file in result.files if file.path.name == "train.py")
    lines = [line.strip() for line in file.text.splitlines()]
    return lines, [lines[finding.place.line - 1] for finding in result.listed]


@pytest.mark.parametrize(
    ("callbacks", "fire", "start", "end", "listed"),
    [
        ("{}", 'self.fire("step")', 'trainer.on("step", show)', "", LOSS),
        ("defaultdict(list)", 'self.fire("step")', 'trainer.callbacks["step"].append(show)', "", LOSS),
        ("[]", f"for function in self.callbacks:\n    {OWN}", "trainer.callbacks += [show, show_steps]", "", LOSS),
        ("()", f"for function in self.callbacks:\n    {OWN}", "trainer.callbacks = (show, show_steps)", "", LOSS),
        ("None", "if self.callbacks:\n    self.callbacks(self)", "trainer.callbacks = show", "", LOSS),
        ("{}", 'self.fire("step")', 'trainer.decorator("step")(show)', "", LOSS),
        (
            "{}",
            'self.fire("step")',
            '@trainer.decorator("step")\ndef own(trainer):\n    print("own", trainer.peak)',
            "",
            ['print("own", trainer.peak)'],
        ),
        (
            "[]",
            'self.callbacks[0]("peak", self)',
            "trainer.callbacks.append(lambda name, trainer: print(name, trainer.peak.item()))",
            "",
            ["trainer.callbacks.append(lambda name, trainer: print(name, trainer.peak.item()))"],
        ),
        ("{}", 'self.fire("step")', 'trainer.on("step", board.note)', "board.show()", BOARD),
        ("[]", 'self.ask("note")', "trainer.callbacks.append(board)", "board.show()", BOARD),
        ("[]", 'self.ask("note")\nself.ask("show")', "trainer.callbacks += [board]", "", BOARD),
        (
            "{}",
            'self.fire("step")',
            'trainer.on("step", partial(with_name, "peak"))',
            "",
            ["print(name, trainer.peak.item())"],
        ),
        ("{}", 'self.fire("step")', 'trainer.on("step", every(3))', "", ['print("every", trainer.peak.item())']),
        ("[]", "board.note(self)", "", "threading.Thread(target=board.show).start()", BOARD),
        (
            "[]",
            "list(map(lambda function: function(self), self.callbacks))",
            "trainer.callbacks.append(show)",
            "",
            LOSS,
        ),
        (
            "[]",
            f"for function in self.callbacks:\n    {OWN}",
            "trainer.callbacks = [show_steps] + [show]",
            "",
            LOSS,
        ),
        ("[]", "board.note(self)", "with board:\n    trainer.run()", "", BOARD),
        ("[]", "Board.last = self.peak", "", 'print("last", board.last)', ['print("last", board.last)']),
        ("[]", "self.shared(self)", "Trainer.share(show)", "", LOSS),
    ],
    ids=[
        "setdefault",
        "defaultdict",
        "added_list",
        "tuple",
        "attribute",
        "put_by_a_closure",
        "decorated",
        "lambda",
        "bound_method",
        "method_by_text",
        "methods_by_text",
        "partial",
        "closure",
        "thread",
        "map",
        "joined_lists",
        "with",
        "attribute_of_a_class",
        "stored_in_a_class",
    ],
)
def test_what_a_callback_shows_is_listed(
    callbacks: str, fire: str, start: str, end: str, listed: list[str], tmp_path: Path
) -> None:
    lines, found = lines_of(tmp_path, callbacks, fire, start, end)
    assert found == listed, lines


def test_the_last_of_many_callbacks_is_followed(tmp_path: Path) -> None:
    names = [f"idle_{number}" for number in range(12)]
    start = "".join(f"def {name}(trainer):\n    pass\n\n\n" for name in names)
    start += f"trainer.callbacks = [{', '.join(names)}, show]"
    _, found = lines_of(tmp_path, "[]", f"for function in self.callbacks:\n    {OWN}", start, "")
    assert found == LOSS


def test_a_mean_that_a_callback_shows_is_reduced(tmp_path: Path) -> None:
    lines, found = lines_of(tmp_path, "{}", 'self.fire("step")', 'trainer.on("step", show_hits)', "")
    assert "self.hits = rd.reduce_loss((outputs.argmax(1) == y).float().mean())" in lines
    assert not found


def test_what_is_the_same_on_all_ranks_is_not_listed(tmp_path: Path) -> None:
    _, found = lines_of(tmp_path, "{}", 'self.fire("step")', 'trainer.on("step", show_steps)', "")
    assert not found
