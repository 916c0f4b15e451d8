"""Paths of a training: from the start of the script to a backward call, with the loops on them."""

from __future__ import annotations

import ast
import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Union

from retrofit.analysis.calls import CallSite, default_of, given_parameters, last_name
from retrofit.analysis.flow.branches import exits_before, is_in_body
from retrofit.analysis.flow.calls.sites import sites_of
from retrofit.analysis.flow.main_guard import is_under_main_of_another
from retrofit.analysis.flow.reachability import known_scopes
from retrofit.analysis.scopes import FUNCTIONS, Scope, own_nodes, parameters
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import LocalFunction, Member, Result

from .steps.modes import mode_before
from .torch_api.frameworks import SEARCH_OBJECTS, SEARCHES
from .torch_api.runtime import RUN_TRIALS

LoopNode = Union[ast.For, ast.AsyncFor, ast.While]
LOOPS = (ast.For, ast.AsyncFor, ast.While)
SETTINGS = re.compile(r"conf|cfg|opt|arg|setting|param|flag", re.IGNORECASE)
MOST_PATHS = 64
RUNS_SEARCH = SEARCHES | {RUN_TRIALS}


@dataclass(frozen=True)
class Frame:
    """One function, or the module, on the way to a backward call: the call that leads inwards, and its loops."""

    scope: Scope
    node: ast.AST
    loops: tuple[LoopNode, ...]  # around `node` in this scope, innermost first


@dataclass(frozen=True)
class Path:
    """A way to a backward call, from the inside: the first frame holds the backward call itself."""

    frames: tuple[Frame, ...]

    @property
    def loops(self) -> list[tuple[LoopNode, Frame]]:
        """All loops on the way, innermost first."""
        return [(loop, frame) for frame in self.frames for loop in frame.loops]


def backward_calls(analysis: Analysis) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the calls that compute gradients: `loss.backward()`, `scaler.scale(loss).backward()`."""
    for source in analysis.modules.sources.values():
        for node in source.nodes.of(ast.Call):
            if not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr != "backward":
                continue
            scope = analysis.scope_at(source, node)
            if not any(isinstance(value, LocalFunction) for value in analysis.evaluate(node.func, scope)):
                yield node, scope


def closure_steps(analysis: Analysis) -> dict[ast.AST, list[CallSite]]:
    """Return the functions that `optimizer.step(closure)` runs, with these calls."""

    def compute() -> dict[ast.AST, list[CallSite]]:
        found: dict[ast.AST, list[CallSite]] = defaultdict(list)
        for scope in analysis.scopes():
            for node in own_nodes(scope.node).of(ast.Call):
                if isinstance(node.func, ast.Attribute) and node.func.attr == "step":
                    for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                        for value in analysis.evaluate(argument, scope):
                            if isinstance(value, LocalFunction):
                                found[value.node].append(CallSite(node, scope))
        return dict(found)

    return analysis.fact("closure steps", compute)


def search_runs(analysis: Analysis) -> dict[ast.AST, list[CallSite]]:
    """Return the functions that a search for settings runs, `study.optimize(objective)`, with these calls."""

    def compute() -> dict[ast.AST, list[CallSite]]:
        found: dict[ast.AST, list[CallSite]] = defaultdict(list)
        for scope in analysis.scopes():
            for node in own_nodes(scope.node).of(ast.Call):
                if searches(analysis, node, scope):
                    given = [*node.args, *(keyword.value for keyword in node.keywords)]
                    for value in frozenset().union(*(analysis.evaluate(argument, scope) for argument in given)):
                        for function, bound in analysis.functions_of(value):
                            found[function.node].append(CallSite(node, scope, bound))
        return dict(found)

    return analysis.fact("search runs", compute)


def searches(analysis: Analysis, call: ast.Call, scope: Scope) -> set[str]:
    """Return the names of the searches for settings that a call runs."""
    names = analysis.called(call, scope) & RUNS_SEARCH
    methods = [value for value in analysis.evaluate(call.func, scope) if isinstance(value, Member)]
    made = [(value, value.base) for value in methods if isinstance(value.base, Result)]
    return names | {f"{b.builder}(...).{v.name}" for v, b in made if SEARCH_OBJECTS.get(b.builder or "") == v.name}


def paths_to(
    analysis: Analysis, node: ast.AST, scope: Scope, anywhere: bool = False, closures: bool = False
) -> list[Path]:
    """Return the ways from a start of the program (a module, a function that nothing calls) to `node`.

    What another script would do as the program is left out, unless `anywhere`. With `closures`, what an optimizer's
    step runs is called there.
    """
    found: list[Path] = []
    of_another = partial(is_under_main_of_another, analysis)

    def extend(frames: tuple[Frame, ...]) -> None:
        outermost = frames[-1].scope
        callers = [*sites_of(analysis, outermost), *search_runs(analysis).get(outermost.node, [])]
        if closures:
            callers = [*callers, *closure_steps(analysis).get(outermost.node, [])]
        further = [site for site in callers if not any(site.scope is frame.scope for frame in frames)]
        is_start = not further
        further = [site for site in further if not is_ruled_out(analysis, frames, site)]
        last = frames[-1]
        if is_start and len(found) < MOST_PATHS and (anywhere or not of_another(last.scope, last.node)):
            found.append(Path(frames))
        for site in further:
            if len(found) < MOST_PATHS:
                extend((*frames, _frame(site.scope, site.call)))

    extend((_frame(scope, node),))
    return found


def backward_paths(analysis: Analysis) -> list[Path]:
    """Return every way to every backward call in a loop."""

    def compute() -> list[Path]:
        calls = list(backward_calls(analysis))
        for anywhere, closures in ((False, False), (True, False), (False, True)):
            paths = [path for call, scope in calls for path in paths_to(analysis, call, scope, anywhere, closures)]
            if any(path.loops for path in paths):
                break
        return [path for path in paths if path.loops]

    return analysis.fact("ways to backward calls", compute)  # type: ignore[no-any-return]


def training_paths(analysis: Analysis) -> list[Path]:
    """Return every way to every backward call in a loop, but for attacks in an evaluation and measured times.

    Nor those by which an evaluation fits a tensor to each of its batches.
    """
    from .model.gradients import drops_gradients, evaluates  # which imports this module
    from .optimizer.fitted_tensors import without_fitted

    def compute() -> list[Path]:
        paths = backward_paths(analysis)
        paths = [path for path in paths if not evaluates(analysis, path)] or paths
        paths = [path for path in paths if not drops_gradients(path)] or paths
        return without_fitted(analysis, paths)

    return analysis.fact("training paths", compute)


def reached_paths(analysis: Analysis) -> list[Path]:
    """Return the ways to backward calls that a run of the script takes.

    Those from functions that nothing calls, and those through methods of a class that nothing names, are left out where
    there are others: a training for another script.
    """
    paths = training_paths(analysis)
    reached = known_scopes(analysis)
    started = [path for path in paths if path.frames[-1].scope in reached]
    run = [path for path in started if all(frame.scope in reached for frame in path.frames)]
    return run or started or paths


def calls_without_training(analysis: Analysis, paths: list[Path]) -> set[ast.Call]:
    """Return the calls of functions that train, of which the arguments say that this time they do not."""
    ruled_out: dict[ast.Call, bool] = {}  # on each of the ways to a backward call in the function
    for path in paths:
        for number, frame in enumerate(path.frames, 1):
            for site in sites_of(analysis, frame.scope):
                is_out = ruled_out.get(site.call, True) and is_ruled_out(analysis, path.frames[:number], site)
                ruled_out[site.call] = is_out
    return {call for call, is_out in ruled_out.items() if is_out}


def is_ruled_out(analysis: Analysis, frames: tuple[Frame, ...], site: CallSite) -> bool:
    """Return whether a call does not lead to the node of the first frame; it calls the function of the last one.

    `run(loader, train=False)` of a function that says `if train: loss.backward()`, or hands `train` on to one that
    does; a call under torch.no_grad(); one after `model.eval()` of a function that says `if model.training:`.
    """
    sites = [*(_site_on_way(analysis, *pair) for pair in zip(frames, frames[1:])), site]
    if any(_is_passed_by(frame, sites[number:]) for number, frame in enumerate(frames)):
        return True
    from .model.gradients import is_switched_off, may_switch_on  # which imports this module

    is_off = is_switched_off(analysis, site.scope, site.call)
    return is_off and not any(may_switch_on(analysis, frame.scope, frame.node) for frame in frames)


def _site_on_way(analysis: Analysis, inner: Frame, outer: Frame) -> CallSite:
    """Return the call by which one frame of a path leads to the one before."""
    assert isinstance(outer.node, ast.Call)
    found = (site for site in sites_of(analysis, inner.scope) if site.call is outer.node)
    return next(found, CallSite(outer.node, outer.scope))


def _is_passed_by(frame: Frame, sites: list[CallSite]) -> bool:
    """Return whether a function does not come to the frame's node when it is called so, from the inside out."""
    function = frame.scope.node
    if not isinstance(function, FUNCTIONS):
        return False
    inner: ast.AST = frame.node
    for outer in frame.scope.source.ancestors(frame.node):
        if isinstance(outer, (ast.If, ast.IfExp)) and inner is not outer.test:
            truth = truth_in_call(frame.scope, sites, outer.test)
            if truth is not None and truth is not is_in_body(outer, inner):
                return True
        if any(truth_in_call(frame.scope, sites, test) for test in exits_before(frame.scope.source, inner)):
            return True
        if outer is function:
            return False
        inner = outer
    return False


def truth_in_call(scope: Scope, sites: list[CallSite], test: ast.expr) -> bool | None:
    """Return whether a test in a function holds when it is called so, None where the calls do not tell.

    The first of `sites` calls the function, the next one the function that this call is in.
    """
    if isinstance(test, ast.Constant) or not isinstance(scope.node, FUNCTIONS):
        return bool(test.value) if isinstance(test, ast.Constant) else None
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = truth_in_call(scope, sites, test.operand)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        truths = {truth_in_call(scope, sites, part) for part in test.values}
        decisive = isinstance(test.op, ast.Or)
        return decisive if decisive in truths else None if None in truths else not decisive
    if isinstance(test, (ast.Name, ast.Attribute)):
        by_caller = _asked_by_caller(scope, sites, test) if isinstance(test, ast.Name) else None
        if by_caller is not None:
            return truth_in_call(sites[0].scope, sites[1:], by_caller)
        value = _given(scope, sites, test)
        if isinstance(value, (ast.Compare, ast.UnaryOp)):
            return truth_in_call(scope, sites, value)
        return bool(value.value) if isinstance(value, ast.Constant) else None
    is_one = isinstance(test, ast.Compare) and len(test.ops) == 1
    return _compares(test, lambda node: _given(scope, sites, node)) if is_one else None  # type: ignore[arg-type]


def _asked_by_caller(scope: Scope, sites: list[CallSite], name: ast.Name) -> ast.expr | None:
    """Return the test of a caller that a parameter is given: `step(x, train)`, where `train = split == "train"`."""
    if len(sites) < 2 or not _is_only_given(scope, name.id):
        return None
    given = sites[0].argument(given_parameters(scope), name.id)
    if given is None or given[1] is not sites[0].scope:
        return None
    value, where = given
    if isinstance(value, ast.Name):
        value = where.only_value(value.id) or value
    return value if isinstance(value, (ast.Compare, ast.BoolOp, ast.UnaryOp)) else None


def _given(scope: Scope, sites: list[CallSite], node: ast.expr) -> ast.expr | None:
    """Return the value of a name in a function when it is called so: an argument, a default, its one assignment."""
    if not isinstance(node, ast.Name):
        return _mode_set(scope, sites, node)
    assert isinstance(scope.node, FUNCTIONS)
    name, names = node.id, parameters(scope.node)
    bound = names[1:] if names[:1] == ["self"] else names
    if name not in bound:
        values = [b.value for b in scope.bindings.get(name, []) if b.kind == "value" and not b.path]
        return values[0] if len(values) == 1 else None
    given = sites[0].argument(bound, name)
    if given is None:
        return None if sites[0].is_open else default_of(scope.node, name)
    value, where = given
    if isinstance(value, ast.Name) and len(sites) > 1 and where is sites[0].scope and _is_only_given(where, value.id):
        return _given(where, sites[1:], value) or value
    return value


def _is_only_given(scope: Scope, name: str) -> bool:
    """Return whether a name is a parameter of a function that nothing else sets there."""
    is_parameter = isinstance(scope.node, FUNCTIONS) and name in parameters(scope.node)
    return is_parameter and [binding.kind for binding in scope.bindings.get(name, [])] == ["parameter"]


def _mode_set(scope: Scope, sites: list[CallSite], node: ast.expr) -> ast.expr | None:
    """Return what `model.training` is in a function that is called after `model.eval()` or `model.train()`."""
    if not isinstance(node, ast.Attribute) or node.attr != "training":
        return None
    places = [(scope, node), *((site.scope, site.call) for site in sites)]
    found = (mode_before(where.source, place, last_name(node.value)) for where, place in places)
    return next((mode for mode in found if mode is not None), None)


def _compares(test: ast.Compare, given: Callable[[ast.expr], ast.expr | None]) -> bool | None:
    """Return whether a comparison of a parameter with what is written down holds, None where that is not known."""
    left, wanted, op = test.left, test.comparators[0], test.ops[0]
    if not isinstance(left, ast.Name) or given(left) is None:
        left, wanted = wanted, left  # Phase.TRAIN == phase
    value = given(left) if isinstance(left, ast.Name) else None
    if value is None:
        return None
    if isinstance(op, (ast.In, ast.NotIn)):
        parts = wanted.elts if isinstance(wanted, (ast.Tuple, ast.List, ast.Set)) and left is test.left else [wanted]
        found = {_are_equal(value, part) for part in parts} if parts != [wanted] else {None}
        equal = True if True in found else None if None in found else False
    else:
        equal = _are_equal(value, wanted)
    if equal is None or not isinstance(op, (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)):
        return None
    return equal if isinstance(op, (ast.Eq, ast.Is, ast.In)) else not equal


def _are_equal(value: ast.expr, wanted: ast.expr) -> bool | None:
    """Return whether two literals, or two members of one class of constants, are the same; None where not known."""
    if isinstance(value, ast.Constant) and isinstance(wanted, ast.Constant):
        return bool(value.value == wanted.value)
    if isinstance(wanted, ast.Constant):
        return False if wanted.value is None else None
    if isinstance(value, ast.Attribute) and isinstance(wanted, ast.Attribute):
        owner = last_name(wanted.value)  # Phase.VAL, Phase.TRAIN: not cfg.MODE, Config.TRAIN
        is_class = owner[:1].isupper() and not owner.isupper() and not SETTINGS.search(owner)
        return value.attr == wanted.attr if is_class and last_name(value.value) == owner else None
    return None


def exclude_each_other(one: ast.expr, other: ast.expr) -> bool:
    """Return whether two tests compare one variable with different values: phase == "train", phase == "val"."""
    tests = [test for test in (one, other) if isinstance(test, ast.Compare) and len(test.ops) == 1]
    if len(tests) < 2 or not all(isinstance(test.ops[0], (ast.Eq, ast.Is)) for test in tests):
        return False
    values = [test.comparators[0] for test in tests]
    return ast.dump(tests[0].left) == ast.dump(tests[1].left) and _are_equal(*values) is False


def phase_of(path: Path) -> dict[LoopNode, tuple[str, str]]:
    """Return for each loop in which backward runs in one phase only, the variable and its value then.

    `("phase", "train")` of `for phase in ["train", "val"]: ... if phase == "train": loss.backward()`.
    """
    frame = path.frames[0]
    source = frame.scope.source
    for outer in source.ancestors(frame.node):
        if outer is frame.scope.node:
            break
        found = _equals_text(outer.test) if isinstance(outer, ast.If) and _is_in(frame, outer.body) else None
        if found is not None:  # a loop within the test, as of `if __name__ == "__main__"`, has no other phase
            return {loop: found for loop in frame.loops if loop in source.ancestors(outer)}
    return {}


def _is_in(frame: Frame, body: list[ast.stmt]) -> bool:
    statement = frame.scope.source.statement(frame.node)
    around = {statement, *frame.scope.source.ancestors(statement)}
    return any(part in around for part in body)


def _equals_text(test: ast.expr) -> tuple[str, str] | None:
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq):
        return None
    left, right = test.left, test.comparators[0]
    if isinstance(left, ast.Name) and isinstance(right, ast.Constant) and isinstance(right.value, str):
        return left.id, right.value
    return None


def loops_around(scope: Scope, node: ast.AST) -> Iterator[LoopNode]:
    """Yield the loops around a node in its function, the innermost one first."""
    for outer in itertools.takewhile(lambda outer: outer is not scope.node, scope.source.ancestors(node)):
        if isinstance(outer, LOOPS):
            yield outer


def _frame(scope: Scope, node: ast.AST) -> Frame:
    return Frame(scope, node, tuple(loops_around(scope, node)))
