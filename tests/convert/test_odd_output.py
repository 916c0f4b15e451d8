"""Odd names and odd files of a project: nothing controls the terminal, and nothing of launch.json is lost or fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from convert.test_placement import script_of

from retrofit.cli import main
from retrofit.convert.added.files import merge_launch

NAME = "train\x1b[31m\x07\u202e.py"


@pytest.mark.parametrize("command", ["check", "convert"])
def test_a_file_name_cannot_control_the_terminal(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / NAME).write_text(script_of("wandb.log({'loss': loss.item()})"))
    assert main([command, str(tmp_path / NAME), "--root", str(tmp_path)]) in (0, 1)
    out, err = capsys.readouterr()
    assert "train\\x1b[31m\\x07\\u202e.py" in out + err
    assert not [part for part in out + err if part in "\x1b\x07\u202e"]


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        3,
        "a",
        {},
        {"configurations": None},
        {"configurations": {"a": 1}},
        {"configurations": "text"},
        {"configurations": 3},
        {"configurations": [{"name": []}]},
    ],
)
def test_odd_launch_files_are_left_alone(content: object) -> None:
    assert merge_launch(json.dumps(content).encode(), "train.py")[0] is None


@pytest.mark.parametrize("entry", [None, 3, "a", [], {}, {"name": None}])
def test_odd_entries_are_kept(entry: object) -> None:
    merged, _ = merge_launch(json.dumps({"configurations": [entry]}).encode(), "train.py")
    assert merged is not None and json.loads(merged)["configurations"][0] == entry
