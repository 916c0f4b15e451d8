"""RF512 prompt-on-every-rank: every process asks the user, who answers one of them."""

from __future__ import annotations

from collections.abc import Iterator

from retrofit.project import Project
from retrofit.project.edits import call_through
from retrofit.training.answers import prompts

from .finding import Finding, found

CODE = "RF512"
NAME = "prompt-on-every-rank"
WHY = "The processes read one keyboard: the answer goes to one of them, and the others wait or fail."
HELP = "rd.answer_of_main(input, text): rank 0 asks, and all go by the answer"
BAD = """\
answer = input("overwrite? ")
"""
GOOD = """\
answer = rd.answer_of_main(input, "overwrite? ")
"""


def find(project: Project) -> Iterator[Finding]:
    for call, scope in prompts(project.analysis):
        edits = call_through(scope.source, call, "rd.answer_of_main")
        yield found(CODE, scope.source, call, "every process asks the user", HELP, edits)
