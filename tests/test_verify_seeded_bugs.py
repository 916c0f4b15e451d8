"""`retrofit verify` from end to end: seeded bugs are named.

docs/make_bug_table.py judges every seeded bug; here are one of each kind, and in the quick tests those whose cause no
quicker test has.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from verify_command import judge

sys.path.insert(0, str(Path(__file__).parent / "verify"))

from bugs.catalogue import BUGS, seed_bug

pytestmark = pytest.mark.usefixtures("forked_python")

SEEDED = ["01", "05", "08", "10", "19", "21b", "26d"]
SLOW = {"01", "05", "10", "19", "21b"}


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(bug, id=f"{bug.id} {bug.title}", marks=[pytest.mark.slow] * (bug.id in SLOW))
        for bug in BUGS
        if bug.id in SEEDED
    ],
)
def test_a_seeded_bug_is_named(bug: Any, tmp_path: Path) -> None:
    seed_bug(bug, tmp_path)
    status, report = judge(tmp_path, ["--hang-after", "5", *bug.verify_options], bug.arguments)
    failures = {verdict["check"]: verdict["cause"] for verdict in report["verdicts"] if verdict["status"] == "FAIL"}
    assert status == 1 and set(failures.values()) & set(bug.cause), failures


@pytest.mark.slow
def test_an_accepted_finding_does_not_fail(tmp_path: Path) -> None:
    bug = next(bug for bug in BUGS if bug.id == "15")
    seed_bug(bug, tmp_path)
    status, report = judge(tmp_path, ["--accept", "batchnorm"], bug.arguments)
    assert status == 0
    assert [v["check"] for v in report["verdicts"] if v["status"] == "ACCEPTED"] == ["batchnorm"]
