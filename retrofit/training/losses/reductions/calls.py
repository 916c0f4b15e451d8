"""Calls on the way to a loss: reductions over the batch, loss functions, changes of shape, functions of elements."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from retrofit.analysis.calls import argument_for, last_name
from retrofit.analysis.flow.keys import Key, Keys, is_of_container
from retrofit.analysis.flow.sources import PASSING_ON, Origin, origins, sources
from retrofit.analysis.nodes import walk
from retrofit.analysis.python_api import LISTS_OBJECTS, LOOKS_UP, MAPPINGS
from retrofit.analysis.scopes import Scope, is_imported
from retrofit.analysis.values.fields import given_to_entry
from retrofit.analysis.values.kinds import LocalFunction, Result, name_of
from retrofit.analysis.values.mapped import MAP
from retrofit.training.torch_api.modules import GRADIENT_FUNCTIONS, PARAMETER_CLASSES, PARAMETERS
from retrofit.training.torch_api.runtime import (
    BATCH_ROWS,
    CHOSEN_MEAN,
    DISTRIBUTE_CRITERION,
    GATHER_BATCH,
    GLOBAL_REDUCTIONS,
    LOSS_READS,
    PART_OF_MEAN,
    RANK_SHARE,
    SUM_LOSS,
    WHOLE_BATCH_LOSS,
)
from retrofit.training.torch_api.tensors import (
    DOTS,
    DRAWN,
    DRAWN_LIKE,
    EINOPS_REDUCE,
    FILLED,
    FILLED_LIKE,
    JOINS,
    MAPPED,
    NEW,
    OF_EACH_ENTRY,
    OPERATORS,
    REDUCTIONS,
    REPEATS,
    SAME_ARRAY,
    SAMPLE_MEANS,
    SCATTERS,
    SHAPE_METHODS,
    SPLITS,
    SUMS_AND_MEANS,
    SUMS_OF_SEVERAL,
    TRANSPOSES,
    WITHOUT_HISTORY,
    not_in_place,
)

from ..criteria.layers_along_axes import compares_samples, goes_along_samples
from ..gathering.one_axis import may_have_one_axis
from ..rows.scattered import put_by
from ..terms import MEAN, terms_at
from ..wrapped import functions_inside
from . import kinds
from .axes import axes_of, einsum_kind, kind_by_pattern, maps_other_axis
from .functions import Applied, RowFunctions
from .kinds import CONSTANT, Kind, Leaf
from .library import COUNTED_MEAN, library_reduction
from .lists import LAYERS, SAMPLES

if TYPE_CHECKING:
    from .reader import Frame, LossReader

JOINING = JOINS | SUMS_OF_SEVERAL | {"tensor_split"}
SAME = SAME_ARRAY | REPEATS | LOOKS_UP | LISTS_OBJECTS | {"requires_grad_", "squeeze", "neg", "as_tensor"}
MAKING = FILLED | FILLED_LIKE | DRAWN | DRAWN_LIKE | NEW | {"tensor"}
WITH_ENTRIES = {"tensor", "new_tensor", "normal", "uniform"}  # made of their arguments, if they have some
MEANS = (MEAN, "batchmean", COUNTED_MEAN)
PRODUCTS_OF = {"mm": 1, "matmul": 1, "mv": 1, "addmm": 2, "addmv": 2}  # the place of the second factor
STATISTICAL = {"scipy", "sklearn"}  # packages that compute nothing with a gradient
FOLDS = {
    **dict.fromkeys(("max", "min", "sorted"), "builtins"), "reduce": "functools", "accumulate": "itertools",
    **dict.fromkeys(("nlargest", "nsmallest"), "heapq"),
}  # fmt: skip
GIVE_SAMPLES = ("sorted", "accumulate", "nlargest", "nsmallest")  # folds with several entries
NUMBERS = {"len", "int", "float", "range", "isinstance", "max", "min"}


class CallReader:
    """Answers of which kind a call is."""

    def __init__(self, reader: LossReader) -> None:
        self.reader, self.analysis = reader, reader.analysis
        self.rows = RowFunctions(reader)

    def kind(self, node: ast.Call, scope: Scope, frame: Frame | None, keys: Keys) -> Kind:
        called = self.analysis.called(node, scope)
        if GATHER_BATCH in called:
            return CONSTANT
        entry = given_to_entry(self.analysis, node, scope, keys[0]) if keys else None
        if entry is not None:
            return self.reader.kind(*entry, frame, keys[1:])
        if called & (GLOBAL_REDUCTIONS | LOSS_READS):
            return kinds.of(kinds.GLOBAL)
        if called & {PART_OF_MEAN, RANK_SHARE} and node.args:
            found = self.reader.kind(node.args[0], scope, frame, keys)
            return kinds.of(kinds.GLOBAL) if found.parts == {kinds.PENALTY} else found
        terms = terms_at(self.analysis, node, scope)
        if self.reader.may_be_global and self._is_of_all_ranks(node, scope, frame):
            return kinds.of(kinds.GLOBAL)
        functions = functions_inside(self.analysis, node, scope)
        if terms:  # of the project's own, too, where a setting chooses the criterion
            coupled = self._coupled_in(node, scope, frame)
            if node.args and compares_samples(terms, self.reader.kind(node.args[0], scope, frame)):
                return kinds.coupled_by(replace(CONSTANT, coupled=coupled), (node, scope))
            own = [self.reader.returned(function, node, scope, frame, keys) for function in functions]
            found = kinds.join([*(self._of_term(term.reduction, node, scope) for term in terms), *own])
            return replace(found, coupled=found.coupled | coupled) if coupled else found
        if functions:
            found = kinds.join(self.reader.returned(function, node, scope, frame, keys) for function in functions)
            is_loss = bool(keys) and isinstance(keys[0], str) and "loss" in keys[0].lower()  # next to the outputs
            is_prediction = found.has_rows and not is_loss and node in self.reader.project.batch_values.calls
            if not is_prediction:
                return found
            self.reader.in_models |= {part for part, _ in found.coupled}
            return replace(kinds.of(kinds.ROWS, found.axis), coupled=found.coupled)
        made = [value for value in self.analysis.evaluate(node.func, scope) if isinstance(value, Result)]
        if mapped := [value.call for value in made if value.builder in MAPPED]:
            given = self._joined(node.args, scope, frame, ())
            if given.has_rows and (given.axis not in (0, kinds.FLAT) or any(map(maps_other_axis, mapped))):
                return kinds.coupled_by(given, (node, scope), kinds.ROWS)
            if kinds.GLOBAL in given.parts:
                return given
        if any(value.builder == WHOLE_BATCH_LOSS for value in made):
            return kinds.of(kinds.GLOBAL)
        if DISTRIBUTE_CRITERION in {*(value.builder for value in made), *called}:
            return kinds.of(kinds.MEAN)
        if SUM_LOSS in called:
            return kinds.of(kinds.WHOLE)
        if any(value.builder.rpartition(".")[2][:1].isupper() for value in made):
            found, coupled = self._of_object(node, scope, frame, keys), self._coupled_in(node, scope, frame)
            return replace(found, coupled=found.coupled | coupled) if coupled else found
        if GRADIENT_FUNCTIONS & called:
            return self._of_gradients(node, scope, frame)
        found_entry = self._entry_of(node, scope, frame) if keys and called & {"sorted", MAP} else None
        if found_entry is not None:
            return found_entry
        passed_on = self._passed_on(node, scope, keys)
        if passed_on or (keys and called & MAPPINGS):
            return kinds.join(self.reader.kind(part, scope, frame, inner) for part, inner in passed_on)
        return self._of_function(node, scope, frame, keys)

    def _coupled_in(self, node: ast.Call, scope: Scope, frame: Frame | None) -> frozenset[Leaf]:
        """Return the sums and means over the batch in what a layer or a criterion is given.

        `x - x.mean(0)`, or weights by how often each class is in the batch.
        """
        given = self._joined([*node.args, *(keyword.value for keyword in node.keywords)], scope, frame, ())
        return given.coupled | given.leaves

    def _of_gradients(self, node: ast.Call, scope: Scope, frame: Frame | None) -> Kind:
        """Return the kind of gradients with respect to inputs of the samples, each by its own row of the outputs."""
        outputs, inputs = (
            self._joined([part] if (part := argument_for(node, ["outputs", "inputs"], name)) else [], scope, frame, ())
            for name in ("outputs", "inputs")
        )
        if not inputs.has_rows:
            return kinds.of(kinds.UNKNOWN)
        is_share = kinds.MEAN in outputs.parts or kinds.SHARE in outputs.parts
        found = kinds.of(kinds.SHARE if is_share else kinds.ROWS, inputs.axis)
        return replace(found, coupled=outputs.coupled | inputs.coupled)

    def _is_of_all_ranks(self, node: ast.Call, scope: Scope, frame: Frame | None) -> bool:
        """Return whether a call gathers rows over the ranks, or is a loss of gathered ones."""
        if BATCH_ROWS in self.analysis.called(node, scope):
            return True
        is_loss = "loss" in last_name(node).lower() or bool(terms_at(self.analysis, node, scope))
        is_own = not is_loss or bool(functions_inside(self.analysis, node, scope))
        return not is_own and any(kinds.GLOBAL in self.reader.kind(part, scope, frame).parts for part in node.args)

    def _entry_of(self, node: ast.Call, scope: Scope, frame: Frame | None) -> Kind | None:
        """Return the kind of an entry of sorted(rows), or of map(torch.mean, columns); None where it is not known."""
        if last_name(node) == "sorted":
            found = self.reader.kind(node.args[0], scope, frame) if node.args else CONSTANT
            return kinds.coupled_by(found, (node, scope), kinds.ROWS) if found.has_rows else None
        column = self.reader.kind(node.args[1], scope, frame, (Key.ELEMENT,)) if len(node.args) == 2 else CONSTANT
        if kinds.GLOBAL in column.parts:
            return column
        given = self.analysis.evaluate(node.args[0], scope) if column.has_rows else ()
        names = {name_of(value).rpartition(".")[2] for value in given}
        names |= {last_name(part) for v in given if isinstance(v, LocalFunction) for part in walk(v.node)}
        return kinds.coupled_by(column, (node, scope)) if REDUCTIONS.intersection(names) else None

    def _passed_on(self, node: ast.Call, scope: Scope, keys: Keys) -> list[tuple[ast.expr, Keys]]:
        """Return the arguments whose entries a function of Python passes on: list(losses)[0], zip(a, b)."""
        if not keys or (PASSING_ON | MAPPINGS | {MAP}).isdisjoint(self.analysis.called(node, scope)):
            return []
        found = sources(self.analysis, Origin(node, scope, keys))
        return [(part, inner) for part, _, inner in found if isinstance(part, ast.expr)]

    def _of_term(self, reduction: str, node: ast.Call, scope: Scope) -> Kind:
        if reduction == "none":
            return kinds.of(kinds.ROWS)
        part = kinds.MEAN if reduction in MEANS else kinds.SUM if reduction == "sum" else kinds.UNKNOWN
        self.reader.reductions.setdefault(node, set()).add(part)
        leaves = frozenset([(node, scope)]) if part != kinds.UNKNOWN else frozenset()
        return Kind(frozenset([part]), leaves=leaves)

    def _of_object(self, node: ast.Call, scope: Scope, frame: Frame | None, keys: Keys) -> Kind:
        """Return the kind of what an object of a library gives: a criterion, or a layer or a model."""
        reduction = library_reduction(self.analysis, node, scope)
        if reduction is not None:
            return self._of_term(reduction, node, scope)
        if is_of_container(keys):
            return kinds.of(kinds.UNKNOWN)
        given = self.reader.kind(node.args[0], scope, frame) if node.args and keys in ((), (0,)) else CONSTANT
        if kinds.GLOBAL in given.parts:  # a layer without weights, of gathered rows
            return kinds.of(kinds.GLOBAL)
        made = (value for value in self.analysis.evaluate(node.func, scope) if isinstance(value, Result))
        if any(goes_along_samples(self.analysis, value, given) for value in made):
            return kinds.coupled_by(given, (node, scope), kinds.ROWS, given.axis)
        return kinds.of(kinds.ROWS, given.axis if given.has_rows else 0)

    def _of_function(self, node: ast.Call, scope: Scope, frame: Frame | None, keys: Keys) -> Kind:
        name = not_in_place(last_name(node))
        receiver = self._receiver(node, scope)
        if receiver is not None and name.endswith("_") and name[:-1] in OPERATORS.keys() | {"neg"}:
            name = name[:-1]  # in place: x.div_(2)
        if (name in PARAMETERS and receiver is not None) or self.analysis.called(node, scope) & PARAMETER_CLASSES:
            return kinds.of(kinds.PENALTY)
        if name == "scale" and len(node.args) == 1:
            return self.reader.kind(node.args[0], scope, frame, keys)  # scaler.scale(loss)
        given = [receiver] if receiver is not None else node.args[:1]
        rest = node.args if receiver is not None else node.args[1:]
        if name in WITHOUT_HISTORY and receiver is not None:
            found = self.reader.kind(receiver, scope, frame)
            if not found.has_rows:  # a sum or mean that is read is a figure; a maximum is not reduced as one
                return kinds.without_gradient(found)
        if name in SUMS_AND_MEANS and given:
            return self._reduced(node, name.replace("nan", ""), given[0], rest, scope, frame)
        if given and CHOSEN_MEAN in self.analysis.called(node, scope):
            return self._reduced(node, MEAN, given[0], rest, scope, frame)
        if name == "einsum" and node.args:
            return self.noted(einsum_kind(node, self._joined(node.args, scope, frame, ()), scope), node)
        if EINOPS_REDUCE in self.analysis.called(node, scope) and node.args:
            return self.noted(kind_by_pattern(node, self.reader.kind(node.args[0], scope, frame), scope), node)
        if name in MAKING and (receiver is None or name in NEW) and not self._takes_entries(node, name, scope):
            return CONSTANT
        if name in PRODUCTS_OF and given and len(rest) >= PRODUCTS_OF[name]:
            factors = [*given, *rest][PRODUCTS_OF[name] - 1 :]
            found = self.reader.operation(ast.MatMult(), factors[0], factors[1], scope, frame, node)
            return kinds.join([found, self.reader.kind(given[0], scope, frame)]) if PRODUCTS_OF[name] > 1 else found
        is_dot = name in DOTS or (name == "inner" and may_have_one_axis(self.reader.project, given[0], scope))
        is_dot = is_dot and self._module_of(node, scope) != "numpy"
        if is_dot and given and rest:  # of vectors: a product, summed up
            found = self.reader.operation(ast.Mult(), given[0], rest[0], scope, frame, node)
            return self.noted(kinds.reduced(found, kinds.SUM, (node, scope), None, False), node)
        if name == "tensordot" and given and rest:
            return self._contracted(node, given[0], rest, scope, frame)
        if name == "square" and given:
            return self.reader.operation(ast.Pow(), given[0], ast.Constant(2), scope, frame, node)
        if name in OPERATORS and given and rest:
            return self.reader.operation(OPERATORS[name], given[0], rest[0], scope, frame, node)
        if name in SHAPE_METHODS:
            return CONSTANT
        if receiver is None and name in FOLDS and given and FOLDS[name] in (self._module_of(node, scope) or "builtins"):
            folded = self._folded(node, name, scope, frame)
            if folded is not None:
                return folded
        if name in NUMBERS and receiver is None and "torch" not in self._module_of(node, scope):
            return CONSTANT if name not in ("max", "min", "float") else self._joined(node.args, scope, frame, ())
        if name in JOINING and given:
            found = self._joined(given, scope, frame, (None, *keys))
            return self._stacked(node, found, given[0], rest, scope) if name == "stack" else found
        if not given:
            return kinds.of(kinds.UNKNOWN)
        if name in ("values", "items"):
            inside = sources(self.analysis, Origin(node, scope, keys or (None,)))
            return kinds.join(self.reader.kind(part, scope, frame, inner) for part, _, inner in inside)  # type: ignore[arg-type]
        if name.rstrip("_") in SCATTERS and receiver is not None:
            return kinds.join([self.reader.kind(receiver, scope, frame, keys), put_by(self.reader, node, scope, frame)])
        found = self._joined(given, scope, frame, keys)
        if is_of_container(keys) and name not in SAME:
            is_of_tensor = keys in ((None,), (Key.ELEMENT,)) and self._gives_tensor(node, name, scope)
            if is_of_tensor and name not in SPLITS:
                return kinds.entry(self.reader.kind(node, scope, frame))
            whole = self._joined(given, scope, frame, ()) if is_of_tensor else CONSTANT
            axis = (axes_of(node, rest, scope)[0] or (0,))[0]
            if whole.has_rows and name == "unbind" and axis == whole.axis:
                return kinds.of(kinds.ROWS)
            if whole.has_rows and axis != whole.axis:  # columns: of each there is an entry for each sample
                return replace(whole, axis=whole.axis - (name == "unbind" and 0 <= axis < whole.axis))
            return kinds.of(kinds.UNKNOWN)  # of what a function of a library gives: losses by their names
        return self._of_elements(node, name, found, given, rest, scope, frame)

    def _gives_tensor(self, node: ast.Call, name: str, scope: Scope) -> bool:
        """Return whether a function or a method is known to give a tensor, whose entries are parts of it."""
        return name in TRANSPOSES | OF_EACH_ENTRY | SPLITS and not self._is_of_library(node, scope)

    def _folded(self, node: ast.Call, name: str, scope: Scope, frame: Frame | None) -> Kind | None:
        """Return the kind of what Python computes from one sample after the other: max(losses), reduce(add, rows)."""
        of = node.args[-1 if name == "max" or name == "min" else 0 if name in ("sorted", "accumulate") else 1]
        if len(node.args) > 1 and name in ("max", "min"):
            return None
        found = self.reader.kind(of, scope, frame, (None,) if isinstance(of, ast.List) else ())
        entries = self.reader.samples.lists.entries(of, scope)
        is_sum = name == "reduce" and "operator.add" in self.analysis.named(node.args[0], scope)
        if not found.has_rows or (entries == {LAYERS} and found.axis == 0):
            return found if is_sum else None
        return kinds.coupled_by(found, (node, scope), kinds.ROWS if name in GIVE_SAMPLES else kinds.COUPLED)

    def _contracted(
        self, node: ast.Call, left: ast.expr, rest: list[ast.expr], scope: Scope, frame: Frame | None
    ) -> Kind:
        """Return the kind of torch.tensordot(x, y, dims=([0], [0])): a sum over the samples of both."""
        dims = argument_for(node, ["a", "b", "dims"], "dims")
        axes = [ast.unparse(part) for part in getattr(dims, "elts", [])]
        first, second = self.reader.kind(left, scope, frame), self.reader.kind(rest[0], scope, frame)
        if axes and all(axis in ("0", "[0]", "(0,)") for axis in axes):
            first = replace(first, axis=1) if first.axis == 0 else first
        return self.noted(kinds.product(first, second, (node, scope)), node)

    def _stacked(self, node: ast.Call, found: Kind, of: ast.expr, rest: list[ast.expr], scope: Scope) -> Kind:
        """Return the kind of tensors that are put side by side: in a new axis, before that of the samples."""
        (axis, *_) = axes_of(node, rest, scope)[0] or (0,)
        if found.has_rows and axis > 0 and self.reader.samples.lists.entries(of, scope) == {SAMPLES}:
            return replace(found, axis=axis)
        if not found.has_rows or found.axis != 0 or axis != 0:
            return found
        return replace(found, axis=1) if self.reader.samples.lists.entries(of, scope) == {LAYERS} else found

    def _is_stack(self, node: ast.expr, scope: Scope) -> bool:
        """Return whether an expression is a tensor of several figures: torch.stack(losses)."""
        return any(last_name(part.node) == "stack" for part in origins(self.analysis, [Origin(node, scope)]))

    def _of_elements(
        self,
        node: ast.Call,
        name: str,
        found: Kind,
        given: list[ast.expr],
        rest: list[ast.expr],
        scope: Scope,
        frame: Frame | None,
    ) -> Kind:
        """Return the kind of a function that changes the shape of an expression, or each of its entries."""
        if name in SAME or name in WITHOUT_HISTORY:
            return found
        if found.has_rows and not self._is_of_library(node, scope):
            return self.rows.kind(Applied(node, name, given[0], rest, scope, frame), found)
        reduction = library_reduction(self.analysis, node, scope)
        if reduction is not None:
            return replace(self._of_term(reduction, node, scope), coupled=self._coupled_in(node, scope, frame))
        if found.has_rows and self.analysis.called(node, scope) & SAMPLE_MEANS and not node.keywords:
            return kinds.of(kinds.MEAN)
        if found.has_rows and self._module_of(node, scope) in STATISTICAL:
            return kinds.coupled_by(found, (node, scope), kinds.ROWS)  # of the array as a whole, as far as is known
        if found.has_rows:
            return kinds.of(kinds.UNKNOWN)
        others = self._joined([*rest, *(keyword.value for keyword in node.keywords)], scope, frame, ())
        if found.parts <= {kinds.UNKNOWN} and others.has_rows:
            return kinds.of(kinds.ROWS)
        is_of_torch = "torch" in self._module_of(node, scope) or isinstance(node.func, ast.Attribute)
        found = kinds.join([found, others])
        return kinds.nonlinear(found) if is_of_torch else kinds.of(kinds.UNKNOWN)

    def _reduced(
        self, node: ast.Call, how: str, of: ast.expr, rest: list[ast.expr], scope: Scope, frame: Frame | None
    ) -> Kind:
        is_python = isinstance(node.func, ast.Name)
        found = self.reader.kind(of, scope, frame, (None,) if is_python else ())
        if is_python and found.parts == {kinds.UNKNOWN} and self.reader.samples.goes_through(of, scope):
            found = self.reader.kind(of, scope, frame)  # the rows of a tensor
        if is_python and not rest and (found.has_rows or found.parts == {kinds.UNKNOWN}):
            if not found.has_rows or self.reader.samples.lists.entries(of, scope) == {LAYERS}:
                return found  # of losses by their names, say; rows of several outputs are added up row by row
            summed = replace(kinds.summed_up(found), coupled=found.coupled)
            return self.noted(kinds.with_leaf(summed, (node, scope)), node)
        axes, keeps = axes_of(node, rest, scope)
        if found.has_rows and found.axis == 0 and self.rows.may_be_first(of, axes, scope):
            return kinds.coupled_by(found, (node, scope))  # a sum of each sample, or of them all
        if found.parts == {kinds.UNKNOWN} and self._is_stack(of, scope):
            return found
        if found.has_rows and found.axis == 0 and axes is not None and 0 not in axes and min(axes, default=0) <= -3:
            self.reader.reductions.setdefault(node, set()).add("")  # over the batch, or not: of how many axes is it?
            return Kind(frozenset([kinds.UNKNOWN]), 0, found.leaves | {(node, scope)}, found.coupled)
        return self.noted(kinds.reduced(found, how, (node, scope), axes, keeps), node)

    def noted(self, kind: Kind, node: ast.expr) -> Kind:
        """Remember what a reduction makes of the batch, and return its kind."""
        if any(leaf is node for leaf, _ in kind.leaves):
            self.reader.reductions.setdefault(node, set()).update(kind.parts)
        return kind

    def joined(self, nodes: list[ast.expr], scope: Scope, frame: Frame | None) -> Kind:
        return self._joined(nodes, scope, frame, ())

    def _receiver(self, node: ast.Call, scope: Scope) -> ast.expr | None:
        """Return the tensor whose method is called: not torch, F, or another module of a library."""
        if not isinstance(node.func, ast.Attribute):
            return None
        value = node.func.value
        is_own = isinstance(value, ast.Name) and value.id == "self"
        is_of_base = isinstance(value, ast.Call) and last_name(value) == "super"
        return None if is_own or is_of_base or is_imported(value, scope) else value

    def _module_of(self, node: ast.Call, scope: Scope) -> str:
        return next((name.partition(".")[0] for name in self.analysis.called(node, scope) if "." in name), "")

    def _takes_entries(self, node: ast.Call, name: str, scope: Scope) -> bool:
        """Return whether what a function makes may have the entries of its arguments."""
        return (name in WITH_ENTRIES and bool(node.args)) or self._is_of_library(node, scope)

    def _is_of_library(self, node: ast.Call, scope: Scope) -> bool:
        """Return whether a function of a library is called, of which nothing is known."""
        is_function = self._receiver(node, scope) is None
        return is_function and self._module_of(node, scope) not in ("", "torch", "einops", "numpy", "math")

    def _joined(self, nodes: list[ast.expr], scope: Scope, frame: Frame | None, keys: Keys) -> Kind:
        return kinds.join(self.reader.kind(node, scope, frame, keys) for node in nodes)
