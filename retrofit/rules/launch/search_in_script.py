"""RF510 search-in-script: every process would run a search for settings of its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.edits import Edit, call_through
from retrofit.analysis.flow.reachability import reached_calls
from retrofit.analysis.scopes import Scope
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.loops import searches
from retrofit.training.torch_api.frameworks import STUDIES
from retrofit.training.torch_api.runtime import RUN_TRIALS

RULE = CATALOG["RF510"]
INVALID = [
    """\
import wandb
wandb.agent("sweep", function=print)
""",
    """\
import optuna

study = optuna.create_study()  # RF510
study.optimize(print, 3)  # RF510
""",
    """\
from ray import tune

tune.run(print)
""",
]
VALID = [
    """\
import wandb
run = rd.output.start_tracker(wandb.init, project="sweep")
""",
    # an optimizer of the project
    """\
class Study:
    def optimize(self, function, n):
        return function(n)


Study().optimize(print, 3)
""",
    # all ranks train each trial together
    """\
import optuna

study = rd.search.open_study(optuna.create_study, direction="maximize")
rd.search.run_trials(study.optimize, print, 3)
""",
]


REMEDY = "start every run with the launcher: `wandb agent` with `torchrun train.py` as its command"


def find(project: Project) -> Iterator[Finding]:
    for node, scope in reached_calls(project.analysis):
        if project.analysis.called(node, scope) & STUDIES:
            yield found(RULE, scope.source, node, "a study per process", _through(scope, node, "rd.search.open_study"))
        for name in sorted(searches(project.analysis, node, scope) - {RUN_TRIALS}):
            message = f"{name} chooses the settings of each training"
            if name in {f"{study}(...).optimize" for study in STUDIES}:
                yield found(RULE, scope.source, node, message, _through(scope, node, "rd.search.run_trials"))
            else:
                refusal = "" if project.distribution.joins else f"{message}, in every process others; {REMEDY}"
                yield found(RULE, scope.source, node, message, refusal=refusal, kind="search")


def _through(scope: Scope, call: ast.Call, function: str) -> list[Edit]:
    return call_through(scope.source, call, function)
