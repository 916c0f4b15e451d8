"""RF512 prompt-on-every-rank: every process asks the user, who answers one of them."""

from __future__ import annotations

from collections.abc import Iterator

from retrofit.analysis.edits import call_through
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.files.answers import prompts

RULE = CATALOG["RF512"]
INVALID = [
    """\
answer = input("overwrite? ")
""",
    """\
import getpass

key = getpass.getpass("key: ")
""",
    """\
if os.path.exists("out"):
    if input("overwrite? ") != "y":
        raise SystemExit
""",
]
VALID = [
    """\
answer = rd.output.answer_of_main(input, "overwrite? ")
""",
    # one process asks
    """\
if rd.is_main_process():
    answer = input("overwrite? ")
""",
    # only the process that failed gets there
    """\
try:
    model.load_state_dict(torch.load("last.pt"))
except FileNotFoundError:
    path = input("path: ")
""",
]


def find(project: Project) -> Iterator[Finding]:
    for call, scope in prompts(project.analysis):
        edits = call_through(scope.source, call, "rd.output.answer_of_main")
        yield found(RULE, scope.source, call, "every process asks the user", edits)
