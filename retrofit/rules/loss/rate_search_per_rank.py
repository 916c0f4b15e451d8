"""RF311 rate-search-per-rank: a finder of learning rates decides by the loss of one rank's samples."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import argument_for
from retrofit.analysis.edits import surround
from retrofit.analysis.flow.assignments import upstream
from retrofit.analysis.flow.operands import computed_from
from retrofit.analysis.flow.reachability import calls_named
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.flow.variables import Variable, variables_of
from retrofit.analysis.scopes import Scope
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.data.loaders import TRAIN
from retrofit.training.losses.reductions.kinds import SUM
from retrofit.training.losses.reductions.library import library_reduction
from retrofit.training.torch_api.optimizers import RANGE_TESTS, RATE_FINDER_PARAMETERS, RATE_FINDERS
from retrofit.training.torch_api.runtime import WHOLE_BATCH_VALUE

RULE = CATALOG["RF311"]
INVALID = [
    """\
from torch_lr_finder import LRFinder
finder = LRFinder(model, optimizer, criterion)  # RF311
finder.range_test(loader, end_lr=1, num_iter=20)
finder.reset()
""",
    # a copy of the model has no wrapper that averages gradients
    """\
import copy
from torch_lr_finder import LRFinder
copied = copy.deepcopy(model)
finder = LRFinder(copied, optim.SGD(copied.parameters(), lr=1e-6), rd.search.whole_batch_value(criterion))  # RF311
finder.range_test(loader, end_lr=1, num_iter=20)
""",
    # a loader that is not the one of the training is not split
    """\
from torch_lr_finder import LRFinder
finder = LRFinder(model, optimizer, rd.search.whole_batch_value(criterion))
finder.range_test(DataLoader(dataset, 4), end_lr=1, num_iter=20)  # RF311
""",
]
VALID = [
    """\
from torch_lr_finder import LRFinder
finder = LRFinder(model, optimizer, rd.search.whole_batch_value(criterion))
finder.range_test(loader, end_lr=1, num_iter=20)
""",
    # the project's own: its loss is reduced where it is read
    """\
class LRFinder:
    def __init__(self, model, optimizer, criterion):
        self.criterion = criterion


finder = LRFinder(model, optimizer, criterion)
""",
]


def find(project: Project) -> Iterator[Finding]:
    for node, scope in calls_named(project.analysis, RATE_FINDERS | RANGE_TESTS):
        is_finder = project.analysis.called(node, scope) & RATE_FINDERS
        yield from _of_finder(project, node, scope) if is_finder else _of_loader(project, node, scope)


def _of_finder(project: Project, call: ast.Call, scope: Scope) -> Iterator[Finding]:
    criterion = argument_for(call, RATE_FINDER_PARAMETERS, "criterion")
    model = argument_for(call, RATE_FINDER_PARAMETERS, "model")
    if criterion is None or model is None:
        return
    trained = _with_sources(project, [model.variable for model in project.models])
    if not _is_by_hand(project) and not variables_of(project.analysis, model, scope) & trained:
        text = f"the range test trains {ast.unparse(model)}, which is not the model of the training"
        yield found(RULE, scope.source, call, text, refusal=text, kind="rate-search")
    elif not _is_by_hand(project) and _is_sum(project, criterion, scope):
        text = f"{ast.unparse(criterion)} sums over the samples, and the range test averages the gradients of the ranks"
        yield found(RULE, scope.source, call, text, refusal=text, kind="rate-search")
    elif not _is_reduced(project, criterion, scope):
        message = "the rate is found by the loss of one rank's samples"
        edits = surround(scope.source, criterion, "rd.search.whole_batch_value(", ")")
        yield found(RULE, scope.source, call, message, edits)


def _of_loader(project: Project, call: ast.Call, scope: Scope) -> Iterator[Finding]:
    loader = argument_for(call, ["train_loader"], "train_loader")
    if loader is None or _is_by_hand(project):
        return
    loaders = [loader.variable for loader in project.loaders if loader.variable and TRAIN in loader.roles]
    shared, found_at = _with_sources(project, loaders), list(origins(project.analysis, [Origin(loader, scope)]))
    given = [(part, at.scope) for at in found_at if isinstance(at.node, ast.Call) for part in at.node.args]
    if not any(variables_of(project.analysis, part, where) & shared for part, where in [(loader, scope), *given]):
        text = f"the range test draws from {ast.unparse(loader)}, which is not the loader of the training"
        yield found(RULE, scope.source, call, text, refusal=text, kind="rate-search")


def _with_sources(project: Project, variables: list[Variable]) -> set[Variable]:
    return {source for variable in variables for source in {variable} | upstream(project.analysis, variable)}


def _is_reduced(project: Project, criterion: ast.expr, scope: Scope) -> bool:
    parts = computed_from(project.analysis, criterion, scope)
    calls = ((part.node, part.scope) for part in parts if isinstance(part.node, ast.Call))
    return any(WHOLE_BATCH_VALUE in project.analysis.called(call, where) for call, where in calls)


def _is_sum(project: Project, criterion: ast.expr, scope: Scope) -> bool:
    """Return whether a criterion of a library adds up the losses of the samples, wherever it is made."""
    return library_reduction(project.analysis, ast.Call(criterion, [], []), scope) == SUM


def _is_by_hand(project: Project) -> bool:
    return project.distribution.is_by_hand
