"""Follow gathered rows forward, to the loss: whatever meets them has to be that of all ranks, too."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from retrofit.analysis.calls import given_parameters, last_name
from retrofit.analysis.flow.reaching_definitions import live_bindings
from retrofit.analysis.nodes import children, walk
from retrofit.analysis.scopes import FUNCTIONS, Scope, own_nodes
from retrofit.analysis.values.kinds import LocalFunction
from retrofit.training.torch_api.tensors import READS, TYPE_ATTRIBUTES, TYPE_METHODS
from retrofit.training.torch_api.tensors import VIEWS as VIEWS_OF

from ..reductions import kinds
from ..wrapped import functions_inside
from .layers import is_other_layer, runs_model
from .seeds import seeds
from .shaped_criteria import shapes_criterion
from .values import FIXED, ROWS, SIZE, VIEWS, WHOLE, ValueReader

if TYPE_CHECKING:
    from retrofit.training import Project

    from ..reductions.reader import LossReader

KEEPS = {"append", "extend", "add", "insert"}
TEXTS = {"format", "str", "repr"}
ENDS = READS | {"backward"}  # a number that is shown, or the gradients
OF_FIGURES = {"detach"}  # of a loss, what is shown


class NotProven(Exception):
    """What would be computed of the gathered rows is not known to be the same as in one process."""


class Spread:
    """What has to be gathered so that what is computed from some rows is computed from those of all ranks.

    `rows`: expressions, and whether they have several views one after the other. `sizes`: the numbers of one rank's
    samples that have to be those of all.
    """

    def __init__(self, project: Project, loss_reader: LossReader) -> None:
        self.project, self.analysis, self.loss_reader = project, project.analysis, loss_reader
        self.rows: dict[ast.expr, tuple[Scope, bool]] = {}
        self.sizes: dict[ast.expr, Scope] = {}
        self._in_batches = project.nodes_in_batches
        self._seen: set[tuple[ast.AST, bool]] = set()
        self._open: set[Scope] = set()  # functions that gather, and those that call them
        self._waiting: list[tuple[ast.expr, Scope, bool]] = []
        self._reader = self._new_reader()

    @property
    def reader(self) -> ValueReader:
        """What reads values with all that is gathered so far."""
        if len(self._reader.gathered) != len(self.rows) + len(self.sizes):
            self._reader = self._new_reader()
        return self._reader

    def _new_reader(self) -> ValueReader:
        return ValueReader(self.project, self.loss_reader.samples.lists, {*self.rows, *self.sizes})

    def gather(self, node: ast.expr, scope: Scope) -> None:
        """Gather the rows that an expression has, which are to be followed. Raises NotProven."""
        value = self.reader.value(node, scope)
        if value.kind == WHOLE:
            return
        if value.kind not in ROWS:
            raise NotProven(value.reason or f"{ast.unparse(node)} is not known to have a row for each sample")
        self.rows[node] = (scope, value.kind == VIEWS)

    def run(self) -> None:
        """Follow all gathered rows to the loss. Raises NotProven."""
        self._open |= {scope for scope, _ in self.rows.values()}
        for node, (scope, _) in list(self.rows.items()):
            self.follow(node, scope)

    def drop_repeats(self) -> None:
        """Leave out what is that of all ranks by what is gathered before it, which was found later."""
        for found in (self.rows, self.sizes):
            for node in list(found):
                others = {*self.rows, *self.sizes} - {node}
                reader = ValueReader(self.project, self.loss_reader.samples.lists, others)
                where = self.rows[node][0] if node in self.rows else self.sizes[node]
                if others and reader.value(node, where).kind == WHOLE:
                    del found[node]

    def follow(self, node: ast.expr, scope: Scope, is_mixed: bool = False) -> None:
        """Follow what is computed from an expression. `is_mixed`: losses of one rank's samples are added to it."""
        self._waiting.append((node, scope, is_mixed))
        if len(self._waiting) > 1:
            return
        while self._waiting:
            place = self._waiting[0]
            if (place[0], place[2]) not in self._seen:
                self._seen.add((place[0], place[2]))
                self._consumed(*place)
            self._waiting.pop(0)

    # What meets gathered rows.

    def require(self, node: ast.expr, scope: Scope) -> None:
        """Let what meets gathered rows be that of all ranks: gather its rows, count its samples over the ranks."""
        value = self.reader.value(node, scope)
        if value.kind in (FIXED, WHOLE):
            return
        if value.kind in ROWS:
            self._require_one_caller(scope)
            self.rows[node] = (scope, value.kind == VIEWS)
        elif value.kind == SIZE:
            for leaf, where in sorted(value.sizes, key=lambda size: size[1].source.place(size[0])):
                self._count(leaf, where)
        else:
            self._require_earlier(node, scope, value.reason)

    def _require_earlier(self, node: ast.expr, scope: Scope, reason: str) -> None:
        """Gather the rows that something is computed from, where it has none itself: y of y[:, None] == y[None]."""
        places = [place for place in seeds(self.reader, node, scope) if place.node is not node]
        if not places or any(self.reader.value(p.node, p.scope).kind not in ROWS for p in places):  # type: ignore[arg-type]
            raise NotProven(f"{ast.unparse(node)} meets the rows of all ranks, and {reason}")
        for place in places:
            self._require_one_caller(place.scope)
            self.gather(place.node, place.scope)  # type: ignore[arg-type]
            self.follow(place.node, place.scope)  # type: ignore[arg-type]

    def _count(self, leaf: ast.expr, scope: Scope) -> None:
        shapes, reason = shapes_criterion(self.project, leaf, scope)
        if shapes and not reason:
            self.sizes.update(shapes)
        elif leaf not in self._in_batches and leaf not in self.sizes:
            raise NotProven(reason or f"{ast.unparse(leaf)} is used before the batches, and is that of one rank")
        else:
            self._require_one_caller(scope)
            self.sizes[leaf] = scope

    def _require_one_caller(self, scope: Scope) -> None:
        """Raise where a function that would be changed is also called for what is not gathered."""
        sites = self.analysis.callers(scope.node) if isinstance(scope.node, FUNCTIONS) else []
        if len([site for site in sites if site.call in self._in_batches]) > 1:
            name = getattr(scope.node, "name", "a function")
            raise NotProven(
                f"{name} is called in several places, and what it computes is not that of all ranks in each"
            )

    # Uses.

    def _consumed(self, node: ast.expr, scope: Scope, is_mixed: bool) -> None:
        parent = scope.source.parents[node]
        while isinstance(parent, (ast.Starred, ast.keyword, ast.Slice)) or _is_index(parent, scope):
            parent = scope.source.parents[parent]
        if isinstance(parent, ast.Call):
            self._in_call(node, parent, scope, is_mixed)
        elif isinstance(parent, ast.Attribute):
            self._of_attribute(parent, scope, is_mixed)
        elif isinstance(parent, ast.BinOp):
            self._in_operation(node, parent, scope, is_mixed)
        elif isinstance(parent, ast.Subscript):
            self._require_parts(parent.value, scope)
            self._require_parts(parent.slice, scope)
            if isinstance(parent.ctx, ast.Load):
                self.follow(parent, scope, is_mixed)
        elif isinstance(parent, ast.IfExp) and parent.test is node:
            return  # the same on all ranks
        elif isinstance(parent, (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.IfExp)):
            for part in children(parent):
                is_test = isinstance(parent, ast.IfExp) and part is parent.test
                if isinstance(part, ast.expr) and part is not node and not is_test:
                    self.require(part, scope)
            self.follow(parent, scope, is_mixed)
        elif isinstance(parent, (ast.Tuple, ast.List, ast.Dict, ast.ListComp, ast.GeneratorExp, ast.NamedExpr)):
            self.follow(parent, scope, is_mixed)
            if isinstance(parent, ast.NamedExpr):
                self._follow_names([parent.target], scope, is_mixed)
        else:
            self._in_statement(node, parent, scope, is_mixed)

    def _require_parts(self, index: ast.expr, scope: Scope) -> None:
        for part in index.elts if isinstance(index, ast.Tuple) else [index]:
            inner = [part.lower, part.upper, part.step] if isinstance(part, ast.Slice) else [part]
            for one in inner:
                if one is not None:
                    self.require(one, scope)

    def _in_statement(self, node: ast.AST, parent: ast.AST, scope: Scope, is_mixed: bool) -> None:
        if isinstance(parent, (ast.Assign, ast.AnnAssign)):
            targets: list[ast.expr] = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
            self._assigned(targets, scope, is_mixed)
        elif isinstance(parent, ast.AugAssign):
            self._added_to(parent, scope, is_mixed)
        elif isinstance(parent, (ast.For, ast.comprehension)):
            self._follow_names([parent.target], scope, is_mixed) if parent.iter is node else None
        elif isinstance(parent, ast.Return):
            self._returned(scope, is_mixed)
        elif isinstance(parent, (ast.Yield, ast.YieldFrom, ast.Await, ast.Lambda)):
            raise NotProven("gathered rows are handed on in a way that is not followed")
        # Shown, tested: the same on all ranks.

    def _returned(self, scope: Scope, is_mixed: bool) -> None:
        """Follow what a function returns where it is called, if it is gathered in the function itself."""
        sites = self.analysis.callers(scope.node) if scope in self._open and scope.is_function else []  # type: ignore[arg-type]
        for site in sites:
            if site.call in self._in_batches:
                self._open.add(site.scope)
                self.follow(site.call, site.scope, is_mixed)

    def _assigned(self, targets: list[ast.expr], scope: Scope, is_mixed: bool) -> None:
        for target in targets:
            if isinstance(target, ast.Attribute):
                raise NotProven(f"{ast.unparse(target)} keeps what is computed from the rows of all ranks")
            if isinstance(target, ast.Subscript):
                if self.reader.value(target.value, scope).kind not in (FIXED, WHOLE):
                    self.require(target.value, scope)
                self._follow_names([target.value], scope, is_mixed)
        self._follow_names([t for t in targets if not isinstance(t, (ast.Attribute, ast.Subscript))], scope, is_mixed)

    def _added_to(self, statement: ast.AugAssign, scope: Scope, is_mixed: bool) -> None:
        """Follow `total += loss`, and what is added to a gathered loss."""
        target = statement.target
        if not isinstance(target, ast.Name):
            self._assigned([target], scope, is_mixed)
            return
        before = ast.copy_location(ast.Name(target.id, ast.Load()), target)
        scope.source.parents[before] = statement
        is_sum = isinstance(statement.op, (ast.Add, ast.Sub))
        own = self.reader.value(before, scope)
        if own.kind not in (FIXED, WHOLE):
            if not is_sum or not self._is_scalar(statement.value, scope):
                raise NotProven(f"{target.id} of one rank is changed by what is computed from the rows of all ranks")
            is_mixed = True
        self._follow_names([target], scope, is_mixed)

    def _follow_names(self, targets: list[ast.expr], scope: Scope, is_mixed: bool) -> None:
        """Follow the variables that something gathered is assigned to."""
        names = {n.id for t in targets for n in walk(t) if isinstance(n, ast.Name)}
        for target in targets:
            if isinstance(target, ast.Attribute):
                return
        owner_nodes = list(own_nodes(scope.node))
        for node in owner_nodes:
            if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load):
                if self.reader.value(node, scope).kind == WHOLE or is_mixed:
                    self.follow(node, scope, is_mixed or self._joins_others(node, scope))
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id in names:
                self._changed(node, scope)

    def _joins_others(self, node: ast.Name, scope: Scope) -> bool:
        """Return whether a variable also has terms of one rank's samples: loss += own."""
        _, bindings = live_bindings(node, scope)
        values = [b.node.value if isinstance(b.node, ast.AugAssign) else b.value for b in bindings]
        kinds_of = {self.reader.value(value, scope).kind for value in values if value is not None}
        return WHOLE in kinds_of and bool(kinds_of - {WHOLE, FIXED})

    def _changed(self, statement: ast.AugAssign, scope: Scope) -> None:
        """Check `loss /= n` and `rows *= mask` of a gathered variable."""
        name = ast.copy_location(ast.Name(statement.target.id, ast.Load()), statement.target)  # type: ignore[union-attr]
        scope.source.parents[name] = statement
        if self.reader.value(name, scope).kind != WHOLE:
            return
        is_sum = isinstance(statement.op, (ast.Add, ast.Sub))
        if not is_sum or not self._is_scalar(name, scope):
            self.require(statement.value, scope)

    def _of_attribute(self, node: ast.Attribute, scope: Scope, is_mixed: bool) -> None:
        if node.attr in TYPE_ATTRIBUTES:
            return
        parent = scope.source.parents[node]
        if not (isinstance(parent, ast.Call) and parent.func is node):
            self.follow(node, scope, is_mixed)
            return
        if node.attr in ENDS | TYPE_METHODS or (node.attr in OF_FIGURES and self._is_scalar(node.value, scope)):
            return
        if node.attr not in KEEPS:
            self._meets(parent, node.value, scope, is_mixed)
        self.follow(parent, scope, is_mixed)

    def _in_operation(self, node: ast.AST, parent: ast.BinOp, scope: Scope, is_mixed: bool) -> None:
        partner = parent.right if parent.left is node else parent.left
        own = self.reader.value(partner, scope)
        is_sum = isinstance(parent.op, (ast.Add, ast.Sub))
        if own.kind not in (FIXED, WHOLE) and is_sum and self._is_scalar(node, scope):  # type: ignore[arg-type]
            is_mixed = True
        elif is_mixed and own.kind != FIXED and not is_sum:
            raise NotProven("a loss with terms of one rank's samples is scaled by something of the batch")
        elif not (is_mixed and is_sum):
            self.require(partner, scope)
        self.follow(parent, scope, is_mixed)

    def _is_scalar(self, node: ast.expr, scope: Scope) -> bool:
        """Return whether this is one number, without a row for each sample."""
        found = self.loss_reader.kind(node, scope)
        return not found.has_rows and bool(found.parts & {kinds.SUM, kinds.MEAN, kinds.COUPLED})

    # Calls.

    def _in_call(self, node: ast.AST, call: ast.Call, scope: Scope, is_mixed: bool) -> None:
        """Follow an argument into a function, and what that makes of it."""
        if call.func is node:
            return
        name = last_name(call)
        functions = functions_inside(self.analysis, call, scope)
        if isinstance(call.func, ast.Attribute) and name in KEEPS and not functions:
            self._gather_next_to(node, call.args, scope)
            self._follow_names([call.func.value], scope, is_mixed)
            return
        is_statement = isinstance(scope.source.parents[call], ast.Expr)
        if is_statement and not name.endswith("_"):
            return  # shown, or written
        if runs_model(self.project, call, scope) or is_other_layer(self.analysis, call, scope):
            raise NotProven("gathered rows would go into the model again, on every rank")
        if name in ("dropout", "grad") or (name.endswith("_like") and "rand" in name):
            raise NotProven(f"{name} is used on the rows of all ranks")
        if name in TEXTS and not functions:
            return  # shown: what else is in the text is a figure of its own
        if name in ("len", "isinstance", "print", "type"):
            self.follow(call, scope, is_mixed) if name == "len" else None
            return
        if functions:
            for function in functions:
                self._into(function, call, scope)
        elif not is_mixed:
            self._meets(call, node, scope, is_mixed)
        self.follow(call, scope, is_mixed)

    def _gather_next_to(self, node: ast.AST, kept: list[ast.expr], scope: Scope) -> None:
        """Gather the rows that are put into a list next to gathered ones: waiting.append((outputs, labels))."""
        for part in kept:
            for one in part.elts if part is node and isinstance(part, (ast.Tuple, ast.List)) else []:
                if self.reader.value(one, scope).kind in ROWS:
                    self.require(one, scope)

    def _meets(self, call: ast.Call, node: ast.AST, scope: Scope, is_mixed: bool) -> None:
        """Let everything else that a call is given be that of all ranks."""
        receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
        others = [*([receiver] if receiver is not None else []), *call.args, *(k.value for k in call.keywords)]
        if self._joins_losses(call, scope):
            return
        if last_name(call) in VIEWS_OF and self._is_of_fixed_number(call, others, scope):
            raise NotProven(f"{ast.unparse(call)} has the number of rows of one rank's batch")
        for part in others:
            inner = node.value if isinstance(node, ast.keyword) else node
            if part is inner:
                continue
            for one in part.elts if isinstance(part, (ast.Tuple, ast.List)) else [part]:
                self.require(one, scope)

    def _is_of_fixed_number(self, call: ast.Call, given: list[ast.expr], scope: Scope) -> bool:
        """Return whether rows are given a first size that the script writes as a number: x.view(64, 10, -1)."""
        sizes = given[1].elts if isinstance(given[1], (ast.Tuple, ast.List)) and given[1].elts else given[1:]
        kind = self.loss_reader.kind(given[0], scope)
        is_number = self.reader.value(sizes[0], scope).kind == FIXED and ast.unparse(sizes[0]) not in ("1", "-1")
        return kind.has_rows and kind.axis == 0 and is_number and not isinstance(sizes[0], ast.Attribute)

    def _joins_losses(self, call: ast.Call, scope: Scope) -> bool:
        """Return whether Python's sum adds losses up."""
        return last_name(call) in ("sum",) and isinstance(call.func, ast.Name)

    def _into(self, function: LocalFunction, call: ast.Call, scope: Scope) -> None:
        """Follow what a call gives to a function of the project, in there."""
        site = self.analysis.site_of(call, scope, function)
        names = given_parameters(function.scope)
        for name in names:
            given = site.argument(names, name)
            if given is not None and self.reader.value(*given).kind == WHOLE:
                self._parameter(name, function.scope)

    def _parameter(self, name: str, scope: Scope) -> None:
        for node in own_nodes(scope.node):  # type: ignore[arg-type]
            if not isinstance(node, ast.Name) or node.id != name or not isinstance(node.ctx, ast.Load):
                continue
            _, bindings = live_bindings(node, scope)
            if any(binding.kind == "parameter" for binding in bindings):
                self.follow(node, scope)


def _is_index(node: ast.AST, scope: Scope) -> bool:
    """Return whether a tuple is an index: x[a, b]."""
    parent = scope.source.parents.get(node)
    return isinstance(node, ast.Tuple) and isinstance(parent, ast.Subscript) and parent.slice is node
