"""A file that is repaired: its syntax tree, and how it speaks of ranks."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from retrofit.analysis.calls import last_name
from retrofit.analysis.edits import Edit
from retrofit.analysis.files.runtime_names import FILE_MODULE, RUNTIME
from retrofit.analysis.files.source import Source
from retrofit.training.placement import import_edit

LOOPS = (ast.For, ast.While)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Candidate:
    """An edit that may repair a fault. `text` says what it does: "call sampler.set_epoch(epoch) in each epoch"."""

    text: str
    edits: tuple[Edit, ...]


@dataclass(eq=False)
class Script:
    """One file of the project. `others`: all of them, this one too."""

    source: Source
    others: list[Script] = field(default_factory=list, repr=False)

    @cached_property
    def runtime(self) -> str:
        """The name of the runtime in this file; "" where no file of the project uses it."""
        is_used = any(script.own_runtime for script in self.others)
        return self.own_runtime or ("rd" if is_used else "")

    @cached_property
    def own_runtime(self) -> str:
        """The name by which this file imports the runtime; "" where it does not."""
        return self._alias(RUNTIME) or self._alias(FILE_MODULE)

    @cached_property
    def dist(self) -> str:
        """The name of torch.distributed in this file; "" where it is not imported."""
        return self._alias("torch.distributed")

    def _alias(self, module: str) -> str:
        package, _, name = module.rpartition(".")
        for node in self.source.nodes.of(ast.Import):
            for alias in node.names:
                if alias.name == module:
                    return alias.asname or alias.name
        for found in self.source.nodes.of(ast.ImportFrom):
            if package and found.module == package:
                for alias in found.names:
                    if alias.name == name:
                        return alias.asname or alias.name
        return ""

    # --- ranks ---------------------------------------------------------------------------------------------------

    def rank(self, place: ast.AST) -> str:
        """Return an expression for the rank that holds at a place, 0 without a process group."""
        if self.runtime:
            return f"{self.runtime}.get_rank()"
        return self._named(place, self.is_rank) or f"({self._dist}.get_rank() if {self._dist}.is_initialized() else 0)"

    def world_size(self, place: ast.AST) -> str:
        if self.runtime:
            return f"{self.runtime}.get_world_size()"
        known = self._named(place, self.is_world_size)
        return known or f"({self._dist}.get_world_size() if {self._dist}.is_initialized() else 1)"

    def is_distributed(self, place: ast.AST) -> str:
        """Return a condition that says whether there are several processes."""
        if self.runtime:
            return f"{self.runtime}.get_world_size() > 1"
        flag = self._named(place, self._is_flag)
        known = self._named(place, self.is_world_size)
        return flag or (f"{known} > 1" if known else f"{self._dist}.is_initialized()")

    @property
    def _dist(self) -> str:
        return self.dist or "dist"

    def is_rank(self, node: ast.AST) -> bool:
        """Return whether an expression is the rank, or asks for it."""
        return self._asks(node, "get_rank", ("RANK",))

    def is_world_size(self, node: ast.AST) -> bool:
        return not isinstance(node, ast.Compare) and self._asks(node, "get_world_size", ("WORLD_SIZE",))

    def _is_flag(self, node: ast.AST) -> bool:
        names = {ast.unparse(target) for target, value in self.assigned if self.is_world_size(value)}
        parts = list(ast.walk(node))
        uses = any(isinstance(part, ast.Name) and part.id in names for part in parts)
        says = any(isinstance(part, ast.Constant) and part.value in ("RANK", "WORLD_SIZE") for part in parts)
        return isinstance(node, ast.Compare) and (uses or says or self._asks(node, "get_world_size", ()))

    def _asks(self, node: ast.AST, function: str, variables: tuple[str, ...]) -> bool:
        for part in ast.walk(node):
            if isinstance(part, (ast.Lambda, ast.IfExp)) and part is not node:
                continue
            if isinstance(part, ast.Call) and last_name(part.func) == function:
                return True
            if isinstance(part, ast.Constant) and part.value in variables:
                return True
        return False

    @cached_property
    def assigned(self) -> list[tuple[ast.expr, ast.expr]]:
        """Every name or attribute that is assigned, with the value; tuples are taken apart."""
        found: list[tuple[ast.expr, ast.expr]] = []
        for node in self.source.nodes.of(ast.Assign):
            for target in node.targets:
                found += _pairs(target, node.value)
        return found

    def _named(self, place: ast.AST, test: object) -> str:
        around = {*self.source.ancestors(place)}
        for target, value in self.assigned:
            function = self.function_of(target)
            is_visible = function is self.source.tree or function in around
            is_before = target.lineno < getattr(place, "lineno", 0) or function not in (
                self.function_of(place),
                self.source.tree,
            )
            if isinstance(target, ast.Name) and is_visible and is_before and test(value):  # type: ignore[operator]
                return target.id
        return ""

    def mentions_rank(self, node: ast.AST) -> bool:
        """Return whether an expression depends on the rank by its own words."""
        names = {ast.unparse(target) for target, value in self.assigned if self.is_rank(value)}
        names |= {"rank", "local_rank", "global_rank"}
        return self.is_rank(node) or any(
            isinstance(part, (ast.Name, ast.Attribute)) and ast.unparse(part) in names for part in ast.walk(node)
        )

    def without_rank(self, node: ast.expr) -> str:
        """Return an expression with the part that depends on the rank left out: `seed` for `seed + rank`."""
        if not self.mentions_rank(node):
            return self.source.segment(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            parts = [part for part in (node.left, node.right) if not self.mentions_rank(part)]
            if parts:
                return self.source.segment(parts[0])
            return self.without_rank(node.left)
        return "0"

    # --- places --------------------------------------------------------------------------------------------------

    def function_of(self, node: ast.AST) -> ast.AST:
        """Return the function around a node, or the module."""
        return next((one for one in self.source.ancestors(node) if isinstance(one, FUNCTIONS)), self.source.tree)

    def calls(self, *names: str, within: ast.AST | None = None) -> Iterator[ast.Call]:
        """Yield the calls of functions or methods with these last names, in the order of the text."""
        nodes = ast.walk(within) if within is not None else iter(self.source.nodes)
        found = [node for node in nodes if isinstance(node, ast.Call) and (not names or last_name(node.func) in names)]
        yield from sorted(found, key=lambda call: (call.lineno, call.col_offset))

    def statement(self, node: ast.AST) -> ast.stmt:
        return self.source.statement(node)

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        return block_of(self.source, statement)

    def loops_around(self, node: ast.AST) -> list[ast.For | ast.While]:
        """Return the loops of its own function around a node, the inner one first."""
        found: list[ast.For | ast.While] = []
        for one in self.source.ancestors(node):
            if isinstance(one, FUNCTIONS):
                break
            if isinstance(one, LOOPS):
                found.append(one)
        return found

    def text(self, node: ast.AST) -> str:
        return self.source.segment(node)

    def with_imports(self, edits: Iterable[Edit]) -> tuple[Edit, ...]:
        """Return the edits and the import of torch.distributed, where they use it and the file has none."""
        edits = tuple(edits)
        if self.dist or self.runtime or not any("dist." in edit.text for edit in edits):
            return edits
        return (import_edit(self.source, "import torch.distributed as dist"), *edits)

    # --- training ------------------------------------------------------------------------------------------------

    @cached_property
    def backwards(self) -> list[ast.Call]:
        return [call for call in self.calls("backward") if isinstance(call.func, ast.Attribute)]

    @cached_property
    def training_functions(self) -> set[str]:
        """The names of the functions of the project that train: they run backward, or call one that does."""
        names: set[str] = set()
        while True:
            more = {name for script in self.others for name in script.functions_that_call({"backward", *names})}
            if more <= names:
                return names
            names |= more

    def functions_that_call(self, names: set[str]) -> Iterator[str]:
        for call in self.calls(*names):
            function = self.function_of(call)
            if isinstance(function, DEFINITIONS) and function.name not in ("forward", "__init__"):
                yield function.name

    @cached_property
    def epoch_loops(self) -> list[ast.For | ast.While]:
        """The outermost loops in which is trained, of those that hold another loop or call a function that trains."""
        found: list[ast.For | ast.While] = []
        for call in self.calls("backward", *self.training_functions):
            loops = self.loops_around(call)
            if loops and (len(loops) > 1 or last_name(call.func) != "backward") and loops[-1] not in found:
                found.append(loops[-1])
        return found

    @cached_property
    def batch_loops(self) -> list[ast.For]:
        """The loops over batches in which is trained."""
        found: list[ast.For] = []
        for call in self.backwards:
            loops = [loop for loop in self.loops_around(call) if isinstance(loop, ast.For)]
            found += loops[:1]
        return list(dict.fromkeys(found))


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    if isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
        if len(target.elts) == len(value.elts):
            return [pair for one, other in zip(target.elts, value.elts) for pair in _pairs(one, other)]
        return []
    return [(target, value)] if isinstance(target, (ast.Name, ast.Attribute)) else []


def keyword_of(call: ast.Call, name: str) -> ast.keyword | None:
    return next((keyword for keyword in call.keywords if keyword.arg == name), None)


def block_of(source: Source, statement: ast.stmt) -> list[ast.stmt]:
    """Return the statements of the block that a statement is in."""
    from retrofit.analysis.edits import block_of as of_edits

    return of_edits(source, statement)
