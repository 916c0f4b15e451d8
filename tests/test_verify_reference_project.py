"""`retrofit verify` on the reference project, with the script from before the conversion: both train the same."""

from __future__ import annotations

import json
import shlex

import pytest
from verify_command import ROOT, run_verify

pytestmark = pytest.mark.usefixtures("forked_python")

COMMAND = "python -m retrofit verify "
PAGE = ROOT / "docs" / "reference_project.md"
QUICK = ["--json", "--html", "", "--steps", "2"]


@pytest.mark.slow  # a minute
def test_the_reference_project_passes_its_own_proof() -> None:
    """The command of the page, with fewer steps: everything is judged but decisions, of which it makes none."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(COMMAND)
    arguments = shlex.split(rest.partition("```")[0].replace("\\\n", " "))
    result = run_verify(ROOT, *QUICK, *arguments)
    report = json.loads(result.stdout)
    others = {verdict["check"]: verdict["summary"] for verdict in report["verdicts"] if verdict["status"] != "PASS"}
    assert (result.returncode, others.keys()) == (0, {"decisions"}), others
