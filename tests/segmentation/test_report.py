from __future__ import annotations

import pytest
import torch

from segmentation.metrics import ConfusionMatrix
from segmentation.report import print_classes, print_summary


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    for name in ("FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)


def cells(text: str) -> list[list[str]]:
    """Return the cells of the rows of a printed table."""
    rows = [line for line in text.splitlines() if line[:1] in "│┃|"]
    return [[cell.strip() for cell in row.replace("┃", "│").replace("|", "│").strip("│").split("│")] for row in rows]


def test_class_table_of_a_known_matrix(capsys: pytest.CaptureFixture[str]) -> None:
    confusion = ConfusionMatrix(3)
    confusion.matrix = torch.tensor([[6, 2, 0], [1, 3, 0], [0, 0, 0]])
    confusion.num_samples = 7
    print_classes(confusion, ["background", "ball", "absent"])
    text = capsys.readouterr().out
    assert text.splitlines()[0].strip() == "validation, 7 images"
    assert cells(text) == [
        ["class", "IoU"],
        ["background", "0.6667"],  # 6 / (8 + 7 - 6)
        ["ball", "0.5000"],  # 3 / (4 + 5 - 3)
        ["absent", "n/a"],
        ["mIoU", "0.5833"],  # the absent class does not count
        ["pixel accuracy", "0.7500"],  # 9 / 12
    ]


def test_a_class_that_is_never_predicted_has_zero_and_not_na(capsys: pytest.CaptureFixture[str]) -> None:
    confusion = ConfusionMatrix(2)
    confusion.matrix = torch.tensor([[0, 0], [4, 0]])
    print_classes(confusion, ["a", "b"])
    assert cells(capsys.readouterr().out)[1:3] == [["a", "0.0000"], ["b", "0.0000"]]


def test_summary(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary("training", {"epochs": 3, "best mIoU": "0.8123"})
    text = capsys.readouterr().out
    assert text.splitlines()[0].strip() == "training"
    assert cells(text) == [["epochs", "3"], ["best mIoU", "0.8123"]]


def test_text_is_printed_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    """rich would read [new] as a style and :car: as a picture; [/x] would even raise."""
    print_summary("a run", {"run": "/data/[new]/[/x]/:car:"})
    confusion = ConfusionMatrix(2)
    confusion.matrix = torch.eye(2, dtype=torch.int64)
    print_classes(confusion, ["[red] :car:", "b"])
    text = capsys.readouterr().out
    assert ["run", "/data/[new]/[/x]/:car:"] in cells(text)
    assert ["[red] :car:", "1.0000"] in cells(text)


def test_a_long_path_is_folded_and_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    path = "/a/very/long/path/" + "x" * 90 + "/end"
    print_summary("training", {"run": path})
    assert "".join(row[1] for row in cells(capsys.readouterr().out)) == path
