"""`retrofit verify` on random states of a rank: what was not drawn from is the same without being restored."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.golden_projects import convert, copy_case
from convert.shape_cases import SHAPE_CASES
from verify_command import judge

pytestmark = pytest.mark.usefixtures("forked_python")


def test_a_stream_that_rank_0_has_not_drawn_from_is_not_accused(tmp_path: Path) -> None:
    """The script seeds numpy and torch, and leaves Python's own stream as each process begins with it."""
    case = next(case for case in SHAPE_CASES if case.name == "config_registry")
    copy_case(case, tmp_path / "before")
    project = copy_case(case, tmp_path / "project")
    convert(project, case.entry)
    (tmp_path / "before").rename(project / "before")
    status, report = judge(project, ["--original", "before/train.py"], case.arguments)
    failed = [verdict["summary"] for verdict in report["verdicts"] if verdict["status"] == "FAIL"]
    assert (status, failed) == (0, [])
