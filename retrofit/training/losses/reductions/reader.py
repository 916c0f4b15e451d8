"""Follow the expressions that a loss is computed by, and tell how each depends on the samples of the batch."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from retrofit.analysis.calls import CallSite, default_of, given_parameters, last_name, returns_of
from retrofit.analysis.flow.bindings import arguments_for
from retrofit.analysis.flow.keys import Key, Keys, keys_inside
from retrofit.analysis.flow.reaching_definitions import live_bindings
from retrofit.analysis.flow.sources import MOST_KEYS, Origin, concatenation, entries
from retrofit.analysis.flow.stored import changed_in, stored_in
from retrofit.analysis.memory import Memory
from retrofit.analysis.nodes import COMPREHENSIONS, walk
from retrofit.analysis.scopes import FUNCTIONS, Binding, Scope
from retrofit.analysis.values.kinds import LocalFunction
from retrofit.training.data.batch_values import GRADIENT
from retrofit.training.torch_api.modules import PARAMETERS
from retrofit.training.torch_api.runtime import BATCH_ROWS, RANK_SHARE

from ..divisions import COUNT, NOTHING, SIZE
from ..divisions import Reader as DivisorReader
from ..gathering.one_axis import is_tensor
from ..rows.scattered import scattered
from ..writes import changes_in_place, sorted_in_place
from . import kinds
from .attributes import AttributeReader
from .axes import after_index, is_of_whole
from .calls import CallReader
from .decided import is_ruled_out, taken
from .kinds import CONSTANT, Kind
from .library import is_square, raised_norm
from .samples import SampleLoops, counted_in, is_added_to, looks_like_size
from .size_factors import SIZE as SIZE_FACTOR
from .size_factors import SizeFactors

if TYPE_CHECKING:
    from retrofit.training import Project

MOST_STEPS = 25_000


@dataclass(frozen=True)
class Frame:
    """A call of a function of the project on the way, by which its parameters are known."""

    function: ast.AST
    site: CallSite
    outer: Frame | None
    known_hash: int = field(init=False, compare=False)  # once, not through the whole chain for each question

    def __post_init__(self) -> None:
        object.__setattr__(self, "known_hash", hash((self.function, self.site, self.outer)))

    def __hash__(self) -> int:
        return self.known_hash

    def is_of(self, function: ast.AST) -> bool:
        """Return whether a function is on the way: it calls itself, then."""
        return self.function is function or (self.outer is not None and self.outer.is_of(function))


class LossReader:
    """Answers of which kind an expression is."""

    def __init__(self, project: Project, gathered: Collection[ast.expr] = ()) -> None:
        """`gathered`: the expressions that are gathered over the ranks."""
        self.project, self.analysis, self.gathered = project, project.analysis, gathered
        self.may_be_global = bool(gathered) or project.calls_any([BATCH_ROWS])
        self.samples = SampleLoops(project)
        self.divisors = DivisorReader(project.analysis, project.batch_values, project.distribution)
        self.size_factors = SizeFactors(project, self.samples.lists)
        self.calls, self.attributes = CallReader(self), AttributeReader(self)
        self.reductions: dict[ast.expr, set[str]] = {}  # what each reduction over a batch makes of it: SUM, MEAN
        self.in_models: set[ast.expr] = set()  # sums and means over the batch in what a model does with its inputs
        self.counts_of_all: dict[ast.expr, Scope] = {}  # numbers of samples next to a sum over those of all ranks
        self.divided_penalties: dict[ast.expr, Scope] = {}  # quotients: of weights, by the samples of a rank
        self._before_batches = set(_before_batches(project))
        self.first_unread: tuple[ast.expr, Scope] | None = None  # past MOST_STEPS
        # Of itself an expression has what it has anyway.
        self._known: Memory[Kind] = Memory(CONSTANT, kinds.of(kinds.UNKNOWN))

    def kind(self, node: ast.expr, scope: Scope, frame: Frame | None = None, keys: Keys = ()) -> Kind:
        """Return how `node` depends on the batch; `keys`: of the items there in containers that it is."""
        keys = keys[:MOST_KEYS]
        question = (node, scope, frame, keys)
        if len(self._known.known) > MOST_STEPS and question not in self._known.known:
            self.first_unread = self.first_unread or (node, scope)
            return kinds.of(kinds.UNKNOWN)
        return self._known.once(question, lambda: self._kind(node, scope, frame, keys))

    def _kind(self, node: ast.expr, scope: Scope, frame: Frame | None, keys: Keys) -> Kind:
        if node in self.gathered:
            return kinds.of(kinds.GLOBAL)
        if isinstance(node, ast.Name):
            return self._of_name(node, scope, frame, keys)
        if isinstance(node, ast.Attribute):
            return self.attributes.kind(node, scope, frame, keys)
        if isinstance(node, ast.Call):
            return self.calls.kind(node, scope, frame, keys)
        if keys and concatenation(node) is not None and (given := list(entries(Origin(node, scope, keys)))):
            return kinds.join(self.kind(part, scope, frame, inner) for part, _, inner in given)  # type: ignore[arg-type]
        if isinstance(node, ast.BinOp):
            return self.operation(node.op, node.left, node.right, scope, frame, node)
        if isinstance(node, ast.UnaryOp):
            return self.kind(node.operand, scope, frame)
        if isinstance(node, (ast.NamedExpr, ast.Await, ast.Starred)):
            return self.kind(node.value, scope, frame, keys)
        if isinstance(node, ast.IfExp):
            return kinds.join(self.kind(part, scope, frame, keys) for part in (node.body, node.orelse))
        if isinstance(node, ast.BoolOp):
            return kinds.join(self.kind(part, scope, frame, keys) for part in node.values)
        if isinstance(node, ast.Compare):
            sides = kinds.join(self.kind(part, scope, frame) for part in (node.left, *node.comparators))
            return kinds.nonlinear(sides) if sides.has_rows else kinds.without_gradient(sides)
        if isinstance(node, ast.Subscript):
            return self._of_subscript(node, scope, frame, keys)
        if isinstance(node, (ast.Tuple, ast.List, ast.Set, ast.Dict)):
            parts = entries(Origin(node, scope, keys))
            return kinds.join(self.kind(part, scope, frame, rest) for part, _, rest in parts)  # type: ignore[arg-type]
        if isinstance(node, COMPREHENSIONS):
            is_key = keys[:1] == (Key.ELEMENT,)  # of a dict an iteration gives the key
            part = node.elt if not isinstance(node, ast.DictComp) else node.key if is_key else node.value
            element = self.kind(part, scope, frame, keys[1:])
            is_of_samples = any(self.samples.goes_through(part.iter, scope) for part in node.generators)
            unclear = (self.samples.unclear(part.iter, scope) for part in node.generators)
            element = kinds.added_up(element, frozenset().union(*unclear))
            is_kept = not is_of_samples or kinds.GLOBAL in element.parts or element.parts <= {kinds.SHARE}
            return element if is_kept else kinds.of(kinds.ROWS)
        return CONSTANT

    # Names.

    def _of_name(self, node: ast.Name, scope: Scope, frame: Frame | None, keys: Keys) -> Kind:
        owner, bindings = live_bindings(node, scope)
        if not bindings:
            return kinds.of(kinds.UNKNOWN)
        if frame is not None and frame.function is owner.node and len(bindings) > 1:
            bindings = taken(bindings, node, owner, frame.site)
        if all(binding.kind == "import" for binding in bindings):
            return CONSTANT
        changed = [binding for binding in bindings if isinstance(binding.node, ast.AugAssign)]
        first = kinds.join(self.of_binding(b, owner, frame, keys) for b in bindings if b not in changed)
        first = kinds.join([first, *self.put_in(node, scope, frame, keys), *scattered(self, node.id, owner, frame)])
        for binding in changed:
            first = self.changed(first, binding.node, owner, frame)  # type: ignore[arg-type]
        for statement in changes_in_place(self.analysis, owner).get(node.id, []):
            first = self.changed(first, statement, owner, frame)
        order = sorted_in_place(self.analysis, owner).get(node.id)
        if order is not None and first.has_rows:
            first = kinds.coupled_by(first, (order, owner), kinds.ROWS, first.axis)
        return self.with_entries_changed(first, node, scope, frame, keys)

    def with_entries_changed(self, kind: Kind, node: ast.expr, scope: Scope, frame: Frame | None, keys: Keys) -> Kind:
        """Return the kind of an entry of a container after `losses["box"] += loss`."""
        for change in changed_in(self.analysis, node, scope):
            if keys_inside(change, keys or (None,)) is not None:
                kind = self.changed(kind, change.statement, change.scope, frame)
        return kind

    def of_binding(self, binding: Binding, scope: Scope, frame: Frame | None, keys: Keys = ()) -> Kind:
        if binding.kind == "parameter" and isinstance(scope.node, FUNCTIONS):
            return self._of_parameter(binding.name, scope, frame, keys)
        if binding.value is None:
            return kinds.of(kinds.UNKNOWN)
        if binding.kind == "item":
            return self._of_element(binding, scope, frame, keys)
        if binding.kind == "enter":  # with amp.scale_loss(loss, optimizer) as scaled
            given = binding.value.args[:1] if isinstance(binding.value, ast.Call) else []
            return kinds.join(self.kind(part, scope, frame) for part in given)
        found = self.kind(binding.value, scope, frame, (*binding.path, *keys))
        adds = is_added_to(binding.name, binding.value)
        is_of_samples = adds and self.samples.is_within(binding.node, scope)
        found = kinds.added_up(found, self.samples.unclear_around(binding.node, scope)) if adds else found
        return kinds.summed_up(found) if is_of_samples and _is_of_sample(found) else found

    def _of_element(self, binding: Binding, scope: Scope, frame: Frame | None, keys: Keys) -> Kind:
        if binding.node in self.project.batch_values.loops:
            is_number = isinstance(binding.value, ast.Call) and last_name(binding.value) == "enumerate"
            return CONSTANT if is_number and binding.path[:1] == (0,) else kinds.of(kinds.ROWS)
        assert binding.value is not None
        if any(last_name(part) in PARAMETERS for part in walk(binding.value) if isinstance(part, ast.Call)):
            return kinds.of(kinds.PENALTY)
        return self.kind(binding.value, scope, frame, (Key.ELEMENT, *binding.path, *keys))

    def _of_parameter(self, name: str, scope: Scope, frame: Frame | None, keys: Keys) -> Kind:
        function = scope.node
        assert isinstance(function, FUNCTIONS)
        inner = frame
        while inner is not None and inner.function is not function:
            inner = inner.outer
        default = default_of(function, name)
        if inner is not None:
            given_here = inner.site.argument(given_parameters(scope), name)
            if given_here is not None:
                value, where = given_here
                return self.kind(value, where, inner.outer if where is inner.site.scope else None, keys)
            return self.kind(default, scope.parent or scope) if default is not None else self._of_unknown(scope)
        sites = arguments_for(self.analysis, name, scope)
        found = [self.kind(given, where, None, keys) for given, where in sites if given is not None]
        if default is not None and (not found or len(found) < len(sites)):
            found.append(self.kind(default, scope.parent or scope))
        return kinds.join(found) if found else self._of_unknown(scope)

    def _of_unknown(self, scope: Scope) -> Kind:
        """Return the kind of what a function is given elsewhere: it may be of a batch, if the batch was there by then.

        The world size that mp.spawn hands to a function with the loop over the batches, and what objects are made with,
        are not functions of samples.
        """
        is_before = getattr(scope.node, "name", "") == "__init__" or scope in self._before_batches
        return CONSTANT if is_before else kinds.of(kinds.ROWS)

    def changed(self, kind: Kind, node: ast.AugAssign, scope: Scope, frame: Frame | None) -> Kind:
        """Return the kind after `loss += more`, `loss /= n`."""
        if isinstance(node.op, (ast.Add, ast.Sub)):
            more = self.kind(node.value, scope, frame)
            more = kinds.added_up(more, self.samples.unclear_around(node, scope))
            return kinds.join([kind, kinds.summed_up(more) if self.samples.is_within(node, scope) else more])
        if isinstance(node.op, ast.Mult):
            return self._product(kind, self.kind(node.value, scope, frame), None, node.value, scope)
        if isinstance(node.op, ast.Div):
            return self._divided(kind, node.value, scope, frame, node.target)
        return kinds.nonlinear(kind)

    def put_in(self, node: ast.expr, scope: Scope, frame: Frame | None, keys: Keys) -> Iterator[Kind]:
        """Yield what is put into a list or a dict: losses.append(loss), losses["box"] = loss."""
        for stored in stored_in(self.analysis, node, scope):
            inner = keys_inside(stored, keys or (None,))
            if inner is None:
                continue
            found = self.kind(stored.value, stored.scope, frame, inner)
            is_own = stored.key is None and kinds.GLOBAL not in found.parts
            is_of_samples = is_own and found.parts and self.samples.is_within(stored.value, stored.scope)
            unclear = self.samples.unclear_around(stored.value, stored.scope) if stored.key is None else frozenset()
            yield kinds.of(kinds.ROWS) if is_of_samples else kinds.added_up(found, unclear)

    # Operations.

    def operation(
        self, op: ast.operator, left: ast.expr, right: ast.expr, scope: Scope, frame: Frame | None, whole: ast.expr
    ) -> Kind:
        first = self.kind(left, scope, frame)
        if isinstance(op, ast.Div):
            return self._divided(first, right, scope, frame, whole)
        if isinstance(op, ast.Pow) or (isinstance(op, ast.Mult) and is_square(left, right)):
            exponent = right if isinstance(op, ast.Pow) else ast.Constant(2)
            tensor = raised_norm(left, exponent, scope) if first.parts == {kinds.COUPLED} else None
            if tensor is None:
                return kinds.nonlinear(first)
            entries = kinds.nonlinear(self.kind(tensor, scope, frame))
            return self.calls.noted(kinds.reduced(entries, kinds.SUM, (whole, scope), None, False), whole)
        second = self.kind(right, scope, frame)
        if isinstance(op, (ast.Add, ast.Sub)):
            for kind, number, other in ((first, second, right), (second, first, left)):
                if kinds.SUM in kind.parts and not number.parts and self.size_factors.of(other, scope):
                    for leaf, _ in kind.leaves:  # y.numel() - y.sum(): both would have to be those of all ranks
                        self.reductions.setdefault(leaf, set()).add("")
            return kinds.join([first, second])
        if isinstance(op, ast.MatMult):
            found = kinds.product(first, second, (whole, scope))
            if (whole, scope) in found.leaves:
                self.reductions.setdefault(whole, set()).update(found.parts)
            return found
        if isinstance(op, ast.Mult):
            return self._product(first, second, left, right, scope)
        return kinds.nonlinear(kinds.join([first, second]))

    def _product(self, first: Kind, second: Kind, left: ast.expr | None, right: ast.expr, scope: Scope) -> Kind:
        """Return the kind of a product; `left`: None for what `loss *= n` multiplies."""
        for kind, factor, other in ((first, right, second), (second, left, first)):
            if factor is not None and not other.parts:
                if kind.is_weighed and kind.has_rows and self.size_factors.of(factor, scope) == SIZE_FACTOR:
                    self.counts_of_all[factor] = scope  # weights that are 1 in the mean
                    return replace(kind, is_weighed=False)
                found = self.size_factors.multiplied(kind, factor, scope)
                if found is not None:
                    return found
        rest = [kind for kind in (first, second) if kind.parts != {kinds.PER}]
        is_divided = len(rest) == 1 and rest[0].parts & {kinds.SUM, kinds.MEAN}
        if is_divided and self._is_per_sample(right, scope):
            return replace(kinds.of(kinds.SHARE), coupled=rest[0].coupled)
        return kinds.multiply(first, second)

    def _divided(self, kind: Kind, divisor: ast.expr, scope: Scope, frame: Frame | None, whole: ast.expr) -> Kind:
        """Return the kind of a quotient; `whole`: its expression, or the variable of `loss /= n`."""
        if kind.unclear and self.samples.lists.counted_by(divisor, scope):
            kind = replace(kind, unclear=frozenset())  # sum(losses) / len(losses), of whatever
        if self.samples.lists.is_fixed(divisor, scope):
            return kind
        calls = (part for part in walk(divisor) if isinstance(part, ast.Call))
        named = self.analysis.named(divisor, scope).union(*(self.analysis.called(call, scope) for call in calls))
        if RANK_SHARE in named:  # of which DDP makes a mean over the batch of all ranks
            return kinds.per_size(kind)
        sizes = self.project.batch_sizes
        is_setting = (divisor, scope) in sizes or (kinds.SUM in kind.parts and sizes.is_number(divisor, scope))
        what = self.divisors.kind_of(divisor, scope)
        is_of_samples = what in (SIZE, COUNT) or (is_setting and kinds.SUM in kind.parts)
        if is_of_samples and kinds.PENALTY in kind.parts <= {kinds.PENALTY, kinds.SUM, kinds.COUPLED}:
            self.divided_penalties[whole] = scope
        if is_setting:
            return self._mean(kinds.per_size(kind, (divisor, scope)), scope, whole)
        if what == COUNT:
            own = self.kind(divisor, scope, frame)
            if (kind.has_rows or kind.scaled) and not self._is_per_sample(divisor, scope):
                totals = own.leaves | own.coupled
                if totals and all(self.reductions.get(leaf) == {kinds.SUM} for leaf, _ in totals):
                    self.counts_of_all.update(kind.scaled)
                    return kinds.weighed(replace(kind, parts=frozenset([kinds.ROWS])), totals, not kind.scaled)
            found = kinds.per_size(kind)
            guarded = {leaf for leaf in own.coupled if self.reductions.get(leaf[0]) == {kinds.SUM}}  # n.clamp(min=1)
            return replace(found, leaves=found.leaves | own.leaves, coupled=found.coupled | (own.coupled - guarded))
        if self.size_factors.is_corrected(divisor, scope):
            for leaf, _ in kind.leaves:
                self.reductions.setdefault(leaf, set()).add("")  # not that of all ranks by its sum alone
            return replace(kinds.per_size(kind), coupled=kind.coupled | kind.leaves)
        if what == SIZE or looks_like_size(self.project.batch_values, divisor, scope):
            if kind.parts & {kinds.SUM, kinds.MEAN} and self._is_per_sample(divisor, scope):
                return replace(kinds.of(kinds.SHARE), coupled=kind.coupled)
            return self._mean(kinds.per_size(kind), scope, whole)
        if what == NOTHING:
            tensors = counted_in(self.analysis, divisor, scope)
            counted = kinds.join(self.kind(part, at, frame if at is scope else None) for part, at, _ in tensors)  # type: ignore[arg-type]
            if counted.has_rows or kinds.UNKNOWN in counted.parts:  # the number of samples, or of something else
                return kinds.divide(kind, kinds.of(kinds.UNKNOWN))
            own = self.kind(divisor, scope, frame)
            return kind if not own.parts or own.parts == {kinds.UNKNOWN} else kinds.divide(kind, own)
        return kinds.divide(kind, self.kind(divisor, scope, frame))

    def _is_per_sample(self, node: ast.expr, scope: Scope) -> bool:
        """Return whether an expression is computed for each sample: in a loop over them, also of a comprehension."""
        loops = (outer for outer in scope.source.ancestors(node) if isinstance(outer, (ast.ListComp, ast.GeneratorExp)))
        generators = (part.iter for loop in loops for part in loop.generators)
        return self.samples.is_within(node, scope) or any(self.samples.goes_through(g, scope) for g in generators)

    def _mean(self, kind: Kind, scope: Scope, whole: ast.expr) -> Kind:
        """Return the kind of a mean over the samples, which is a reduction as a whole: its sum alone is not."""
        if kind.parts != {kinds.MEAN}:
            return kind
        is_stored = not isinstance(whole, ast.Name) and isinstance(getattr(whole, "ctx", None), ast.Store)
        self.reductions.setdefault(whole, set()).add("" if is_stored else kinds.MEAN)
        return replace(kind, leaves=frozenset([(whole, scope)]))

    def _of_subscript(self, node: ast.Subscript, scope: Scope, frame: Frame | None, keys: Keys) -> Kind:
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        is_literal = isinstance(node.slice, (ast.Slice, ast.Tuple, ast.Constant))
        chosen = CONSTANT if is_literal else self.kind(node.slice, scope, frame)
        is_of_tensor = is_of_whole(node.slice) or chosen.has_rows
        found = self.kind(node.value, scope, frame, keys if is_of_tensor else (key, *keys))
        if isinstance(key, int) and found.axis > 0 and is_tensor(self.analysis, node.value, scope):
            return kinds.entry(found)
        if is_literal:
            return replace(found, axis=after_index(found.axis, node.slice)) if found.has_rows else found
        if not chosen.has_rows or not (found.has_rows or chosen.coupled):
            is_test = bool(found.parts) and not chosen.parts  # losses[counts.sum(0) > 0]
            return replace(found, coupled=found.coupled | chosen.leaves) if is_test else found
        # Which rows are chosen may depend on other ones: x[place < most] of a running count.
        return replace(kinds.of(kinds.ROWS, kinds.FLAT), coupled=found.coupled | chosen.coupled | chosen.leaves)

    def returned(self, function: LocalFunction, call: ast.Call, scope: Scope, frame: Frame | None, keys: Keys) -> Kind:
        """Return the kind of what a call of a function of the project gives."""
        site = self.analysis.site_of(call, scope, function)
        inner = None if frame is not None and frame.is_of(function.node) else Frame(function.node, site, frame)
        values = returns_of(function.node)
        if len(values) > 1:
            values = [v for v in values if not is_ruled_out(self.analysis, v, function.scope)]
            learnt = [v for v in values if GRADIENT in self.project.batch_values.sources_of(v, function.scope)]
            values = learnt or values  # `return targets.sum()`, which has no gradient, next to a loss
        return kinds.join(self.kind(value, function.scope, inner, keys) for value in values)


def _is_of_sample(kind: Kind) -> bool:
    """Return whether this is what one sample gives in a loop over them, also divided by their number."""
    return not kind.has_rows or kind.parts == {kinds.SHARE}


def _before_batches(project: Project) -> Iterator[Scope]:
    """Yield the functions with a loop over training batches, and those that come to it: they begin before a batch."""
    for path in project.paths:
        loops = [bool(project.batch_values.loops.intersection(frame.loops)) for frame in path.frames]
        if True in loops:
            yield from (frame.scope for frame in path.frames[loops.index(True) :])
