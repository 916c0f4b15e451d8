"""The lines at which a script's loss couples the samples of a batch, read from its source."""

from __future__ import annotations

from pathlib import Path

from retrofit.training import SourceError, read_project
from retrofit.training.losses.criteria.library import library_couplings
from retrofit.training.losses.reductions.coupling import couplings, is_brought_together


def coupled_losses(script: Path) -> list[str]:
    """Return the places, as `train.py:12`, of what a loss is not linear in; empty for what cannot be read."""
    try:
        project = read_project(script)
        places = [(c.scope, c.node) for c in couplings(project) if not is_brought_together(project, c.scope)]
        places += [(scope, builder) for builder, scope, _, _ in library_couplings(project)]
    except (SourceError, RecursionError):
        return []
    lines = (f"{scope.source.name}:{node.lineno}" for scope, node in places)  # type: ignore[attr-defined]
    return list(dict.fromkeys(lines))
