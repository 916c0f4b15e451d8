"""RF103 loader-not-sharded: every process trains on all samples."""

from __future__ import annotations

from collections.abc import Iterator

from retrofit.project import Project
from retrofit.project.distributed.shards import is_sharded
from retrofit.project.edits import insert_after, surround
from retrofit.project.loaders import EVALUATION, TRAIN
from retrofit.project.placement import after_home

from .finding import Finding, found
from .iterable_dataset import is_stream

CODE = "RF103"
NAME = "loader-not-sharded"
WHY = "Every process trains on every sample, so N processes do the work of one N times."
HELP = "loader = rd.distribute_loader(loader), where the training loader is made"
BAD = """\
loader = DataLoader(dataset, batch_size=8, shuffle=True)
"""
GOOD = """\
loader = DataLoader(dataset, batch_size=8, shuffle=True)
loader = rd.distribute_loader(loader)
"""


def find(project: Project) -> Iterator[Finding]:
    by_hand = project.distribution.is_by_hand
    for loader in project.loaders:
        uses = [use for use in loader.uses if use.role == TRAIN]
        if not uses or is_sharded(project.ranks, loader) or (by_hand and is_stream(project, loader)):
            continue
        use = uses[0]
        message = "every process trains on all samples"
        if loader.home is None:
            edits = surround(use.scope.source, use.expression, "rd.distribute_loader(", ")")
            yield found(CODE, use.scope.source, use.expression, message, HELP, edits)
            continue
        place = after_home(project.analysis, loader.home, project.paths)
        if place is None:
            refusal = f"{loader.home} is set in several places, so none is behind all of them"
            yield found(CODE, use.scope.source, use.expression, message, HELP, refusal=refusal)
            continue
        source, statement = place
        line = f"{loader.home} = rd.distribute_loader({loader.home})"
        others = [use for use in loader.uses if use.role == EVALUATION]
        if others:
            message += f"; {loader.home} is also read at {others[0].scope.source.place(others[0].expression)}"
        yield found(CODE, source, statement, message, HELP, [insert_after(source, statement, [line])])
