"""Tell code that computes gradients from code that does not: evaluation, teachers, moving averages, attacks."""

from __future__ import annotations

import ast
import re

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.calls.graph import functions_reached, holds_on_every_path
from retrofit.analysis.flow.reachability import calls_within
from retrofit.analysis.memory import answered_once
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import FUNCTIONS, Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import LocalFunction, Result
from retrofit.training.torch_api.modules import ATTACKING, DERIVING, GRADIENTS_OFF, GRADIENTS_ON, SET_GRADIENTS

from ..loops import Frame, Path

SWITCHING = (ast.Name, ast.Attribute, ast.Call)  # expressions that can switch gradients on
USING_GRADIENTS = (*DERIVING, *ATTACKING)  # libraries
# In the names of what is called, and of attributes.
USES_GRADIENTS = re.compile(r"(?!zero_grad$).*(step|grad|data|optim|update|clip|apply|train|learn|fit)")


def has_gradients(analysis: Analysis, scope: Scope, node: ast.AST) -> bool:
    """Return whether a node can run with gradients: neither it nor every call of its function is under no_grad."""
    return not holds_on_every_path(analysis, node, scope, lambda place, where: is_switched_off(analysis, where, place))


def is_switched_off(analysis: Analysis, scope: Scope, node: ast.AST) -> bool:
    """Return whether a node is in `with torch.no_grad():` or in a function that is decorated so."""
    for outer in scope.source.ancestors(node):
        contexts: list[ast.expr] = []
        where = scope
        if isinstance(outer, (ast.With, ast.AsyncWith)):
            contexts = [item.context_expr for item in outer.items]
        elif isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
            contexts, where = outer.decorator_list, analysis.scope_of_node[outer].parent or scope
        if any(_switches_off(analysis, context, where) for context in contexts):
            return True
        if outer is scope.node:
            return False
    return False


def may_switch_on(analysis: Analysis, scope: Scope, node: ast.AST) -> bool:
    """Return whether a node of a function is in `with torch.enable_grad():` or another that may switch gradients on."""
    for outer in scope.source.ancestors(node):
        if isinstance(outer, (ast.With, ast.AsyncWith)):
            calls = [item.context_expr for item in outer.items if isinstance(item.context_expr, ast.Call)]
            names = {name for call in calls for name in analysis.called(call, scope)}
            if names & (GRADIENTS_ON | SET_GRADIENTS):
                return True
        if isinstance(outer, FUNCTIONS):
            where = analysis.scope_of_node[outer].parent or scope
            decorators = getattr(outer, "decorator_list", [])
            parts = [part for node in decorators for part in walk(node) if isinstance(part, ast.expr)]
            return any(_switches_on(analysis, part, where) for part in parts)
    return False


def _switches_off(analysis: Analysis, context: ast.expr, scope: Scope) -> bool:
    """Return whether this is `torch.no_grad()`, `torch.no_grad` or `torch.set_grad_enabled(False)`."""
    if isinstance(context, ast.Call):
        names = analysis.called(context, scope)
        is_false = [isinstance(given, ast.Constant) and given.value is False for given in context.args]
        return bool(names & GRADIENTS_OFF) or (bool(names & SET_GRADIENTS) and is_false == [True])
    return bool(analysis.named(context, scope) & GRADIENTS_OFF)


def evaluates(analysis: Analysis, path: Path) -> bool:
    """Return whether a way to a backward call leads through an evaluation: an attack on the model, say.

    Its loop takes no optimizer step, and on the way the model is put into evaluation mode or gradients are off.
    """
    for frame in path.frames:
        for loop in frame.loops:
            if takes_step(analysis, loop, frame.scope):
                return False
        if is_switched_off(analysis, frame.scope, frame.node) or enters_evaluation(frame):
            return any(outer.loops for outer in path.frames[: path.frames.index(frame) + 1])
    return False


def drops_gradients(path: Path) -> bool:
    """Return whether a way to a backward call only takes time, say: nothing reads or uses the gradients."""
    if not isinstance(path.frames[0].scope.node, FUNCTIONS):
        return False
    inner = max(number for number, frame in enumerate(path.frames) if frame.loops)
    nodes = [node for frame in path.frames[:inner] for node in own_nodes(frame.scope.node)]
    nodes += [node for loop in path.frames[inner].loops for node in walk(loop)]
    nodes += [] if inner else list(own_nodes(path.frames[0].scope.node))
    return not any(USES_GRADIENTS.match(last_name(n)) for n in nodes if isinstance(n, (ast.Attribute, ast.Call)))


def takes_step(analysis: Analysis, loop: ast.AST, scope: Scope) -> bool:
    """Return whether a step is made in a loop, also by a function of the project."""
    calls = [node for node in walk(loop) if isinstance(node, ast.Call)]
    return any(
        isinstance(inner.func, ast.Attribute) and inner.func.attr == "step"
        for call in calls
        for inner, _ in calls_within(analysis, call, scope)
    )


def enters_evaluation(frame: Frame) -> bool:
    """Return whether `model.eval()` comes before, in the same function."""
    before = [node for node in own_nodes(frame.scope.node) if getattr(node, "lineno", 0) < frame.node.lineno]  # type: ignore[attr-defined]
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "eval"
        and not node.args
        for node in before
    )


def switches_on(analysis: Analysis, root: ast.AST, scope: Scope) -> bool:
    """Return whether what a loop runs, or a function of the project that it calls, computes gradients on its own.

    That needs no gradients around it: `enable_grad`, `set_grad_enabled(True)`, `inference_mode(False)`,
    `autograd.grad`, `loss.backward()`, a function decorated so, and libraries of attacks.
    """
    nodes = list(walk(root))
    if any(isinstance(node, SWITCHING) and _switches_on(analysis, node, scope) for node in nodes):
        return True
    calls = [(node, scope) for node in nodes if isinstance(node, ast.Call)]
    return any(_is_switching(analysis, function) for function in functions_reached(analysis, calls))


@answered_once
def _is_switching(analysis: Analysis, function: LocalFunction) -> bool:
    """Return whether a function computes gradients on its own, or is decorated so."""
    scope = function.scope
    decorators = [part for node in getattr(function.node, "decorator_list", []) for part in walk(node)]
    around = [part for part in decorators if isinstance(part, SWITCHING)]
    return any(_switches_on(analysis, node, scope) for node in own_nodes(function.node).of(*SWITCHING)) or any(
        _switches_on(analysis, node, scope.parent or scope) for node in around
    )


def _switches_on(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    if isinstance(node, (ast.Name, ast.Attribute)):
        return bool(analysis.named(node, scope) & GRADIENTS_ON)
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute) and node.func.attr == "backward":
        return True
    first = node.args[0] if node.args else next((k.value for k in node.keywords if k.arg == "mode"), None)
    names = analysis.called(node, scope)
    if names & SET_GRADIENTS:
        return isinstance(first, ast.Constant) and first.value is True
    if names & {"torch.inference_mode", "torch.autograd.inference_mode"}:
        return isinstance(first, ast.Constant) and first.value is False
    return any(name.startswith(USING_GRADIENTS) for name in names | _builders(analysis, node.func, scope))


def _builders(analysis: Analysis, function: ast.expr, scope: Scope) -> set[str]:
    """Return what made the object that is called, or of which a method is: `torchattacks.PGD` for `attack(x, y)`."""
    parts = [function, function.value] if isinstance(function, ast.Attribute) else [function]
    values = [value for part in parts for value in analysis.evaluate(part, scope)]
    return {value.builder for value in values if isinstance(value, Result)}
