"""Layers of a model: those that its class, and what it calls, construct."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import partial

from retrofit.analysis.flow.sources import closure
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, own_nodes, parameters
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Display, Instance, Result
from retrofit.training.torch_api.modules import REGISTER_BUFFER, WITH_BATCHNORM

from ..distributed.distribution import Site

Code = tuple[ast.AST, Scope]
# Functions of torch that give a module, with the classes of torch.nn.
MAKES_LAYERS = ("nn.utils.", "optim.swa_utils.", "hub.", "jit.", "compile", "ao.", "quantization.")


def model_of(site: Site) -> ast.expr | None:
    """Return the expression of the model in a call that wraps it."""
    named = next((keyword.value for keyword in site.call.keywords if keyword.arg == "module"), None)
    return site.call.args[0] if site.call.args else named


def has_batchnorm(analysis: Analysis, site: Site) -> bool:
    """Return whether a wrapped model surely has BatchNorm layers."""
    return any(_is_batchnorm(name) for name in builders(analysis, model_of(site), site.scope))


def has_batchnorm_layers(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether the model that an expression names surely has BatchNorm layers."""
    for code, where in _code_of(analysis, node, scope):
        calls = _calls_in(analysis, code, where)
        if any(_is_batchnorm(name) for call, place in calls for name in _names(analysis, call, place)):
            return True
    return False


def has_buffers(analysis: Analysis, site: Site) -> bool:
    """Return whether a wrapped model surely has buffers, which DDP copies from rank 0 before a forward pass."""
    for call, scope in calls_of(analysis, model_of(site), site.scope):
        names = _names(analysis, call, scope)
        is_certain = not any(isinstance(outer, ast.If) for outer in scope.source.ancestors(call))
        if any(_is_batchnorm(name) for name in names) or (is_certain and REGISTER_BUFFER in names):
            return True
    return False


def builders(analysis: Analysis, node: ast.expr | None, scope: Scope) -> set[str]:
    """Return the full names, or the last ones of methods, of all that is called to build the model `node`."""
    return {name for call, where in calls_of(analysis, node, scope) for name in _names(analysis, call, where)}


def calls_of(analysis: Analysis, node: ast.expr | None, scope: Scope) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the calls in the classes of a model and of its layers, in functions that build them, and in `node`."""
    if node is not None:
        yield from _calls_in(analysis, node, scope)


def _calls_in(analysis: Analysis, code: ast.AST, scope: Scope) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the calls in a piece of code, in what it calls, and in what makes the objects that it names."""
    for root, where in closure([(code, scope)], partial(_code_run, analysis)):
        yield from ((part, where) for part in _inside(analysis, root) if isinstance(part, ast.Call))


def _inside(analysis: Analysis, root: ast.AST) -> Iterable[ast.AST]:
    return own_nodes(root) if root in analysis.scope_of_node else walk(root)  # type: ignore[arg-type]


def _code_run(analysis: Analysis, code: Code) -> Iterator[Code]:
    """Yield the functions that are called in a piece of code, and what makes the objects that are named there."""
    root, scope = code
    for part in _inside(analysis, root):
        if isinstance(part, ast.Call):
            yield from ((function.node, function.scope) for function in analysis.functions_called(part, scope))
        if isinstance(part, (ast.Name, ast.Attribute, ast.Call)) and not _is_passed_through(part, root):
            yield from _code_of(analysis, part, scope)


def _is_passed_through(node: ast.expr, root: ast.AST) -> bool:
    """Return whether this is an input of a forward pass: an output of another model, say, and no part of this one."""
    while isinstance(node, ast.Attribute):
        node = node.value
    is_forward = isinstance(root, ast.FunctionDef) and root.name in ("forward", "__call__")
    return is_forward and isinstance(node, ast.Name) and node.id in parameters(root)[1:]  # type: ignore[arg-type]


def _code_of(analysis: Analysis, node: ast.expr, scope: Scope) -> Iterator[Code]:
    """Yield the code that makes what an expression is: the methods of its class, the call or the list it comes from."""
    for value in analysis.evaluate(node, scope):
        if isinstance(value, Instance):
            for owner in analysis.classes.mro(value.scope):
                yield from ((child.node, child) for child in owner.children if child.is_function)
        elif isinstance(value, Result) and value.call is not node and _makes_layers(value.builder):
            yield value.call, value.scope
        elif isinstance(value, Display) and isinstance(value.node, (ast.List, ast.Tuple, ast.ListComp)):
            yield value.node, value.scope


def _makes_layers(builder: str) -> bool:
    """Return whether a function of torch or its relatives makes a module: not a tensor, of which no layer is a part."""
    package, _, name = builder.partition(".")
    if package != "torch":
        return package.startswith("torch")  # torchvision.models.resnet18
    is_class = name.startswith("nn.") and name.rpartition(".")[2][:1].isupper()
    return is_class or name.startswith(MAKES_LAYERS)


def _names(analysis: Analysis, call: ast.Call, scope: Scope) -> set[str]:
    names = analysis.called(call, scope)
    return names | ({call.func.attr} if isinstance(call.func, ast.Attribute) else set())


def _is_batchnorm(name: str) -> bool:
    last = name.rpartition(".")[2]
    if name.startswith("torchvision.models."):
        return last.startswith(WITH_BATCHNORM) or last.endswith("_bn")
    return "BatchNorm" in last and "convert" not in last and name.startswith("torch")
