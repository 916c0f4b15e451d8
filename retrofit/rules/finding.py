"""What a rule says about a place in a project, and what it would change there."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from retrofit.project.edits import Edit
from retrofit.project.source import Place, Source


@dataclass(frozen=True)
class Finding:
    """One hazard. With `edits` it is mended by them; with `refusal` the project cannot be converted, for that reason.

    A finding with neither is advice: what to do is in `help`, and a person has to do it.
    """

    code: str
    place: Place
    message: str
    help: str
    edits: tuple[Edit, ...] = ()
    refusal: str = ""

    @property
    def is_fixable(self) -> bool:
        return bool(self.edits)


def found(
    code: str,
    source: Source,
    node: ast.AST,
    message: str,
    help: str,
    edits: Iterable[Edit] = (),
    refusal: str = "",
) -> Finding:
    """Return a finding at a node."""
    return Finding(code, source.place(node), message, help, tuple(edits), refusal)
