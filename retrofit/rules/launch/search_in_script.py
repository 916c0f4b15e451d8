"""RF510 search-in-script: every process would run a search for settings of its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.values.kinds import Member, Result
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.torch_api.frameworks import SEARCH_OBJECTS, SEARCHES

RULE = CATALOG["RF510"]
INVALID = [
    """\
import wandb
wandb.agent("sweep", function=print)
""",
    """\
import optuna

study = optuna.create_study()
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
    # what an earlier search has found
    """\
import optuna

best = optuna.load_study(study_name="words").best_params
""",
]


def find(project: Project) -> Iterator[Finding]:
    for node, scope in reached_nodes(project.analysis):
        if not isinstance(node, ast.Call):
            continue
        names = project.analysis.called(node, scope) & SEARCHES
        values = project.analysis.evaluate(node.func, scope)
        names |= {f"{v.base.builder}(...).{v.name}" for v in values if isinstance(v, Member) and _searches(v)}  # type: ignore[union-attr]
        for name in sorted(names):
            message = f"{name} chooses the settings of each training"
            refusal = "" if project.distribution.joins else f"{message}, in every process others; {RULE.remedy}"
            yield found(RULE, scope.source, node, message, refusal=refusal, kind="search")


def _searches(value: Member) -> bool:
    return isinstance(value.base, Result) and SEARCH_OBJECTS.get(value.base.builder) == value.name
