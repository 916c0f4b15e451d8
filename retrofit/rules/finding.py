"""A finding: what a rule reports about a place in a project, and what it would change there."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Union

from retrofit.analysis.edits import Edit
from retrofit.analysis.files.source import Place, Source
from retrofit.training import Project
from retrofit.training.distributed.reductions import Reduction
from retrofit.training.files.guards import Guard
from retrofit.training.files.outputs import Output

from .catalog import Rule

Change = Union[Edit, Guard, Reduction]  # the last two become edits when all rules have spoken, see placing.py


@dataclass(frozen=True)
class Finding:
    """One hazard. With `edits` it is fixed by them; with `refusal` the project cannot be converted, for that reason.

    A finding with neither is advice: what to do is in `help`, and a person has to do it.
    """

    code: str
    place: Place
    message: str
    help: str
    edits: tuple[Any, ...] = ()  # of Change; plain edits in what find_all and find_hazards yield
    refusal: str = ""
    kind: str = ""  # of the refusal, see refusals.py
    assumption: str = ""  # under which this does not refuse the script
    node: ast.AST | None = field(default=None, compare=False, repr=False)
    source: Source | None = field(default=None, compare=False, repr=False)
    is_reduced: bool = False  # by `convert`, in the text that the edits of other rules leave: it has none of its own

    @property
    def is_fixable(self) -> bool:
        return bool(self.edits) or self.is_reduced


def found(
    rule: Rule,
    source: Source,
    node: ast.AST,
    message: str,
    edits: Iterable[Change] = (),
    refusal: str = "",
    help: str = "",
    kind: str = "",
) -> Finding:
    """Return a finding at a node. `help`: what to do, where it is not the rule's own remedy."""
    place, remedy = source.place(node), help or rule.remedy
    return Finding(rule.code, place, message, remedy, tuple(edits), refusal, kind, node=node, source=source)


def guarded(project: Project, output: Output) -> list[Guard]:
    """Return an edit that lets one process alone run the statement of an output; none where that is not possible."""
    return [project.guards[output]] if output in project.guards else []
