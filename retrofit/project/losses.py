"""What a training loss is made of: the calls of loss functions behind `loss.backward()`, and how they reduce."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from .analysis import Analysis
from .calls import argument_for
from .distributed.distribution import Distribution, leads_to_collective
from .scopes import Scope
from .training import Path
from .values import External, Result

MEAN = "mean"
_FUNCTIONS = {
    "cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "mse_loss", "l1_loss",
    "smooth_l1_loss", "huber_loss", "kl_div", "triplet_margin_loss", "cosine_embedding_loss", "soft_margin_loss",
}  # fmt: skip
MOST_STEPS = 60


@dataclass(frozen=True)
class Term:
    """A call of a loss function of torch. `maker` has its options: the call itself, or that of nn.CrossEntropyLoss."""

    call: ast.Call
    scope: Scope
    maker: ast.Call
    maker_scope: Scope
    name: str  # cross_entropy, CrossEntropyLoss

    @property
    def reduction(self) -> str:
        """How the losses of single samples become one: "" where that cannot be told."""
        options = {keyword.arg: keyword.value for keyword in self.maker.keywords}
        if None in options or options.keys() & {"size_average", "reduce"}:
            return ""
        given = options.get("reduction")
        if given is None:
            return MEAN
        return given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else ""

    def option(self, name: str) -> ast.expr | None:
        return argument_for(self.maker, [], name)


def term_of(analysis: Analysis, node: ast.AST, scope: Scope) -> Term | None:
    """Return the loss that a node computes with a loss function of torch, None where it does not."""
    if not isinstance(node, ast.Call):
        return None
    for value in analysis.evaluate(node.func, scope):
        if isinstance(value, External):
            module, _, name = value.name.rpartition(".")
            if module == "torch.nn.functional" and name in _FUNCTIONS:
                return Term(node, scope, node, scope, name)
        elif isinstance(value, Result):
            module, _, name = value.maker.rpartition(".")
            if module in ("torch.nn", "torch.nn.modules.loss") and name.endswith("Loss"):
                return Term(node, scope, value.call, value.scope, name)
    return None


def loss_expressions(path: Path) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield what a backward call starts from, and everything in its function that this is computed from."""
    frame = path.frames[0]
    call = frame.node
    assert isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
    waiting: list[ast.expr] = [call.func.value]
    seen: set[ast.expr] = set()
    while waiting and len(seen) < MOST_STEPS:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node, frame.scope
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                waiting += _assigned(part.id, frame.scope)


def is_of_all(analysis: Analysis, distribution: Distribution, path: Path) -> bool:
    """Return whether a loss is computed from what all processes have: gathered embeddings, a common count."""
    return any(
        isinstance(node, ast.Call) and leads_to_collective(analysis, distribution, node, scope)
        for expression, scope in loss_expressions(path)
        for node in ast.walk(expression)
    )


def _assigned(name: str, scope: Scope) -> list[ast.expr]:
    """Return the expressions that a name in a function is computed by."""
    found = []
    for binding in scope.bindings.get(name, []):
        if isinstance(binding.node, ast.AugAssign):
            found.append(binding.node.value)
        elif binding.kind == "value" and binding.value is not None:
            found.append(binding.value)
    return found


def terms_in(node: ast.expr) -> set[str]:
    """Return the names that a sum is made of, with or without factors: `loss_a + 0.1 * loss_b`."""
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.UnaryOp):
        return terms_in(node.operand)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        return terms_in(node.left) | terms_in(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
        terms = [terms_in(part) for part in (node.left, node.right) if not isinstance(part, ast.Constant)]
        return terms[0] if len(terms) == 1 else _of_one_factor(node)
    return set()


def _of_one_factor(node: ast.BinOp) -> set[str]:
    """Return the terms of a factor, where the other one is an option: `args.weight * loss`, not `a * b`."""
    factors = [node.left, node.right]
    settings = [part for part in factors if isinstance(part, (ast.Attribute, ast.Subscript))]
    return terms_in(next(part for part in factors if part not in settings)) if len(settings) == 1 else set()
