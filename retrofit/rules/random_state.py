"""RF108 split-differs-by-rank: every process draws its own split: nothing sets a seed, or it differs by rank."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.project import Project
from retrofit.project.calls import argument_for
from retrofit.project.distributed.ranks import RANK
from retrofit.project.guards import is_guarded
from retrofit.project.main_guard import is_main_guard
from retrofit.project.reach import reached_nodes
from retrofit.project.scopes import Scope, own_nodes

from .finding import Finding, found
from .joining import behind_setup
from .same_random_stream import DRAWS

CODE = "RF108"
NAME = "split-differs-by-rank"
WHY = (
    "Without a common seed every process splits and shuffles in its own way: a training sample of one is a test sample "
    "of another."
)
HELP = "rd.share_random_state(), right behind rd.setup_distributed"
BAD = """\
train_set, val_set = random_split(dataset, [80, 20])
"""
GOOD = """\
rd.share_random_state()
train_set, val_set = random_split(dataset, [80, 20])
"""
SEEDING = {"retrofit.distributed.share_random_state", "retrofit.distributed.seed_everything"}


SEEDS = {"torch.manual_seed", "torch.random.manual_seed", *SEEDING}
SPLITS = {"torch.utils.data.random_split", "torch.utils.data.dataset.random_split"}


def find(project: Project) -> Iterator[Finding]:
    if not project.paths:
        return
    if project.distribution.is_by_hand or project.calls_any(SEEDING):
        yield from _splits(project)  # weights come from the wrapper and orders from the sampler
        return
    for node, scope in reached_nodes(project.analysis):
        if not isinstance(node, ast.Call) or "torch.manual_seed" not in project.analysis.called(node, scope):
            continue
        if any(_is_condition(outer) for outer in scope.source.ancestors(node)):
            continue
        if not _is_drawn(project, node, scope):
            return
    source, statement, edit = behind_setup(project, "rd.share_random_state()")
    yield Finding(
        CODE, source.place(statement), "no seed is set, so the processes differ from the start", HELP, (edit,)
    )


def _is_drawn(project: Project, seed: ast.Call, scope: Scope) -> bool:
    """Return whether the seed is a random number itself, or the time: `args.seed = random.randint(1, 10000)`."""
    texts = {ast.unparse(argument) for argument in seed.args}
    values: list[ast.expr] = list(seed.args)
    for node in own_nodes(scope.node):
        if isinstance(node, ast.Assign) and any(ast.unparse(target) in texts for target in node.targets):
            values.append(node.value)
    calls = (part for value in values for part in ast.walk(value) if isinstance(part, ast.Call))
    return any(project.analysis.called(call, scope) & (DRAWS | {"time.time"}) for call in calls)


def _is_condition(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and not is_main_guard(node)


def _splits(project: Project) -> Iterator[Finding]:
    """Yield the splits that are drawn from a stream of which no seed is known to be the same on all processes."""
    calls = [(node, scope) for node, scope in reached_nodes(project.analysis) if isinstance(node, ast.Call)]
    seeds = [(node, scope) for node, scope in calls if project.analysis.called(node, scope) & SEEDS]
    help = "random_split(dataset, lengths, torch.Generator().manual_seed(0)): one split for all processes"
    for node, scope in calls:
        if not project.analysis.called(node, scope) & SPLITS or is_guarded(scope.source, node):
            continue
        given = argument_for(node, ["dataset", "lengths", "generator"], "generator")
        if given is None and not _is_seeded_alike(project, node, scope, seeds):
            yield found(CODE, scope.source, node, "each process draws another split", help)


def _is_seeded_alike(project: Project, split: ast.Call, scope: Scope, seeds: list[tuple[ast.Call, Scope]]) -> bool:
    """Return whether the last seed before a split may be the same on all processes."""
    before = [node for node, where in seeds if where is scope and node.lineno < split.lineno]
    if before:
        last = max(before, key=lambda node: node.lineno)
        return not _differs(project, last, scope)
    return any(not _differs(project, node, where) for node, where in seeds if where is not scope)


def _differs(project: Project, seed: ast.Call, scope: Scope) -> bool:
    return bool(seed.args) and RANK in project.ranks.sources_of(seed.args[0], scope)
