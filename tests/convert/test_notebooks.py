"""A notebook is converted as the script of its code cells."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from convert.test_starts import TRAINING, tree

from retrofit.analysis.files.notebook import export
from retrofit.analysis.files.source import SourceError
from retrofit.cli import main

CELLS = [
    "%matplotlib inline\n!pip install torch\nimport torch\n",
    "%%bash\nls\n",
    "def make():\n    return torch.nn.Linear(3, 1)\n\n\nmake?",
    f"%%time\n{TRAINING}display('%d steps'\n    % 8)",
    "if model:\n    !ls\n%time torch.save(model.state_dict(), 'last.pt')",
]


def write(folder: Path, *cells: str, language: str = "python") -> Path:
    """Write a notebook with these code cells, and with a text."""
    content = [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]
    notebook = {"cells": [{"cell_type": "markdown", "source": "# Words\n"}, *content]}
    notebook["metadata"] = {"kernelspec": {"language": language}}  # type: ignore[assignment]
    path = folder / "words.ipynb"
    path.write_text(json.dumps(notebook))
    return path


def test_the_lines_of_ipython_are_comments(tmp_path: Path) -> None:
    result = export(write(tmp_path, *CELLS))
    lines = result.text.splitlines()
    assert (result.path, result.number_of_cells) == (tmp_path / "words.py", 5)
    for line in ("# %matplotlib inline", "# !pip install torch", "# %%bash", "# ls", "# make?", "# %%time"):
        assert line in lines
    assert "    pass  # !ls" in lines and "torch.save(model.state_dict(), 'last.pt')" in lines
    assert "    % 8)" in lines and "def display(*values):  # as IPython has it" in lines
    assert [comment.partition(": ")[2] for comment in result.comments] == [
        "%matplotlib inline", "!pip install torch", "%%bash", "make?", "!ls"
    ]  # fmt: skip


def test_a_notebook_is_converted_and_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notebook = write(tmp_path, *CELLS)
    before = tree(tmp_path)
    assert main(["convert", str(notebook)]) == 0 and tree(tmp_path) == before
    said = capsys.readouterr().err
    assert "5 code cells as a script, words.py" in said and "words.ipynb, code cell 5: !ls" in said
    assert main(["convert", str(notebook), "--write"]) == 0
    text = (tmp_path / "words.py").read_text()
    assert "rd.distribute_model" in text and text.index("import torch") < text.index("rd.setup_distributed()")
    assert "words.py" in (tmp_path / "MULTI_GPU.md").read_text() and notebook.read_bytes() == before["words.ipynb"]
    assert main(["convert", str(notebook), "--undo"]) == 0 and tree(tmp_path) == before


@pytest.mark.parametrize(
    ("cells", "language", "reason"),
    [
        (["files = !ls"], "python", "code cell 1: `files = !ls` is not Python"),
        (["x = 1", "print 'a'"], "python", "code cell 2"),
        (["x <- 1"], "R", "a notebook in R"),
    ],
)
def test_what_no_script_can_do_is_refused(cells: list[str], language: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=reason):
        export(write(tmp_path, *cells, language=language))


def test_a_script_of_that_name_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notebook = write(tmp_path, *CELLS)
    (tmp_path / "words.py").write_text("mine = True\n")
    assert main(["convert", str(notebook), "--write"]) == 2
    assert "words.py is there" in capsys.readouterr().err and (tmp_path / "words.py").read_text() == "mine = True\n"


def test_a_file_that_is_not_a_notebook_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "words.ipynb").write_text("[]")
    assert main(["convert", str(tmp_path / "words.ipynb")]) == 2 and "not a notebook" in capsys.readouterr().err
