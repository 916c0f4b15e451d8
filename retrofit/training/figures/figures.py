"""The figures of a training that are of one rank's share of the samples: where they are shown, and what would fix it.

A value is fixed where it leaves its batch: what one process would have there, all ranks then have, and everything
that is computed from it later is right as well.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.reachability import calls_named
from retrofit.analysis.interpreter.frames import Frame
from retrofit.analysis.interpreter.interpreter import Interpreter
from retrofit.analysis.interpreter.state import Root
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import FUNCTIONS
from retrofit.training.data.batch_values import GRADIENT
from retrofit.training.losses.reductions.reduction import has_rows
from retrofit.training.losses.rows.met_samples import where_samples_meet
from retrofit.training.torch_api.runtime import COUNTS_OF_LOSSES
from retrofit.training.torch_api.tensors import COMPARISONS

from .. import Project
from .counts.size_uses import adds_to_count
from .domain import TorchDomain
from .kinds import BATCH_SIZE, LIST, MEAN, REDUCIBLE, SIZE, SUM
from .model_outputs import is_next_to_loss
from .shown import Shown
from .sinks import WEIGHS

MOST_STARTS = 40
PLACES = (ast.Name, ast.Attribute, ast.Subscript)


@dataclass(frozen=True)
class Figures:
    """What was found in one run through a program: places that show figures of one rank, and roots to reduce."""

    shown: list[Shown]
    reducible: list[Root]
    is_complete: bool = True


def figures_of(project: Project) -> Figures:
    """Return the figures of one rank in a project, looked for once."""
    return project.analysis.fact("figures of one rank", lambda: find_figures(project))


def find_figures(project: Project) -> Figures:
    """Run through a project and return its figures of one rank."""
    if not project.paths or project.distribution.is_by_hand:
        return Figures([], [])  # one that shows the figures of rank 0 knows it
    domain, run = followed(project)
    shown = sorted(domain.shown.values(), key=lambda place: place.scope.source.place(place.node))
    return Figures(shown, _reducible(shown, domain), run.is_complete())


def followed(project: Project) -> tuple[TorchDomain, Interpreter]:
    """Run through a project as it is, once."""
    return project.analysis.fact("followed", lambda: follow(project))


def follow(project: Project, together: Collection[ast.AST] = ()) -> tuple[TorchDomain, Interpreter]:
    """Run through a project; the values of the nodes `together` are those of all ranks."""
    domain = TorchDomain(project)
    run = Interpreter(project.analysis, domain, together)
    run.run_frame(Frame(project.analysis.module_scopes[project.entry]))
    for path in project.paths[:MOST_STARTS]:
        for start in [frame.scope for frame in reversed(path.frames)]:  # a search runs the function that it is given
            if path.frames[0].scope not in run.seen and start not in run.seen and isinstance(start.node, FUNCTIONS):
                run.run_frame(Frame(start))
    run.functions.run_the_rest()
    return domain, run


def _reducible(shown: list[Shown], domain: TorchDomain) -> list[Root]:
    """Return the roots that can be reduced: none that belongs to another one that cannot, unless its scale stays."""
    good = {root for place in shown for root in place.roots if _is_good(root, domain)}
    kinds = Counter(node for node, _ in {(root.node, root.kind) for root in good})
    good = {root for root in good if kinds[root.node] == 1}  # of two kinds it cannot be reduced as one of them
    trained_with = {root for place in shown if place.kind == WEIGHS for root in place.roots if adds_to_count(root)}
    while True:
        good = _without_inputs(good, shown, domain)
        bad = [bond for bond in domain.bonds if not bond <= good]
        spoiled = {root for bond in bad for root in good if root in bond and root.kind != MEAN} - trained_with
        if not spoiled:
            break
        good -= spoiled
    known = sorted(good, key=lambda root: (root.scope.source.name, root.scope.source.span(root.node)))
    return [root for root in known if not any(_is_inside(root, other) for other in known)]


def _without_inputs(good: set[Root], shown: list[Shown], domain: TorchDomain) -> set[Root]:
    """Return roots of which none is computed from another: what is reduced is not reduced once more.

    A root that is gives way to what it is computed from, in every place that shows it.
    """
    while True:
        mixed = next((root for root in good if _feeding(root) & good), None)
        if mixed is None:
            return good
        good = good - {mixed}
        inner = {root for root in mixed.inputs if _is_good(root, domain)}
        good |= inner
        for place in shown:
            if mixed in place.roots:
                place.roots = (place.roots - {mixed}) | mixed.inputs
        domain.bonds = {(bond - {mixed}) | mixed.inputs if mixed in bond else bond for bond in domain.bonds}


def _feeding(root: Root) -> set[Root]:
    """Return all that a root is computed from, near and far."""
    found: set[Root] = set()
    waiting = set(root.inputs)
    while waiting:
        found |= waiting
        waiting = {inner for outer in waiting for inner in outer.inputs} - found
    return found - {root}


def _is_good(root: Root, domain: TorchDomain) -> bool:
    if not root.is_open or root.kind not in REDUCIBLE | {LIST} or not _is_readable(root):
        return False
    if root.kind in (SUM, SIZE, LIST, BATCH_SIZE) and not domain.counted:
        return False
    if root.kind == BATCH_SIZE and domain.both.intersection(root.scope.source.ancestors(root.node)):
        return False  # in an evaluation that every rank runs whole it is what it is
    if root.kind in (SUM, SIZE) and root.node in _counted_for_losses(domain.project):
        return False
    if root.kind in (MEAN, SUM) and where_samples_meet(domain.project, root.node, root.scope) is not None:
        return False
    if root.kind == MEAN and (_is_prediction(root, domain) or is_next_to_loss(domain.project, domain.losses, root)):
        return False
    return not isinstance(root.scope.node, ast.Lambda) and not _may_train(root, domain)


def _counted_for_losses(project: Project) -> set[ast.AST]:
    """Return what is added up over the ranks for a loss: reduced before that, it would count once for each rank."""

    def find() -> set[ast.AST]:
        given = [(part, scope) for call, scope in calls_named(project.analysis, COUNTS_OF_LOSSES) for part in call.args]
        return {
            part for place in given for node, _ in project.ranks.origins(*place) for part in walk(node)
        }  # also x.sum() of x.sum().item()

    return project.analysis.fact("counted for losses", find)


def _is_prediction(root: Root, domain: TorchDomain) -> bool:
    """Return whether this has a row for each sample, of what a model gives."""
    is_of_model = GRADIENT in domain.project.batch_values.sources_of(root.node, root.scope)
    return is_of_model and has_rows(domain.project, root.node, root.scope)


def _may_train(root: Root, domain: TorchDomain) -> bool:
    """Return whether what is trained can be computed from an expression: there it has to keep its gradient."""
    statement = root.scope.source.statement(root.node)
    if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        names = {ast.unparse(part) for target in targets for part in walk(target) if isinstance(part, PLACES)}
        if _is_count(root.node):  # in an attribute of an object that trains
            names = {ast.unparse(target) for target in targets}
        if adds_to_count(root) and not _divides(names, root):
            return False
        is_of_figures = root.is_read and root.kind not in (SUM, SIZE)  # a number may still divide a loss
        return not is_of_figures and bool(names & domain.trained(root.scope))
    is_shown = isinstance(statement, (ast.Expr, ast.If, ast.While, ast.Assert, ast.For, ast.With))
    return not root.is_read and not is_shown and root.scope not in domain.trains_in


def _divides(names: set[str], root: Root) -> bool:
    """Return whether something in the function is divided by what is counted: a loss of several batches."""
    divisors = (
        node.right for node in walk(root.scope.node) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)
    )
    return any(ast.unparse(part) in names for divisor in divisors for part in walk(divisor) if isinstance(part, PLACES))


def _is_count(node: ast.expr) -> bool:
    """Return whether an expression counts where something holds, `(y >= 0).sum()`: it has no gradient."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
        node = node.func.value
    return isinstance(node, ast.Compare) or (isinstance(node, ast.Call) and last_name(node) in COMPARISONS)


def _is_readable(root: Root) -> bool:
    """Return whether the text of an expression is where the parser says: it is not in a string of several lines."""
    source = root.scope.source
    try:
        text = ast.parse(source.segment(root.node).strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return False
    return ast.dump(text) == ast.dump(root.node)


def _is_inside(root: Root, other: Root) -> bool:
    return root.node is not other.node and other.node in set(root.scope.source.ancestors(root.node))
