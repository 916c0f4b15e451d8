"""Arithmetic on the way an expression depends on the samples of a batch: entry by entry, as a sum, as a mean."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, replace

from retrofit.analysis.scopes import Scope

ROWS = "rows"  # an entry, or several, for each sample
SHARE = "share"  # rows that are divided by the number of samples
PER = "per"  # 1 / the number of samples
SUM, MEAN = "sum", "mean"  # over the samples
WHOLE = "whole"  # a sum that DDP's average of gradients is made right for, by rd.loss.sum_loss
COUPLED = "coupled"  # a nonlinear function of sums or means: not a sum or a mean of anything that samples have
GLOBAL = "global"  # computed from sums over all ranks: the same on all of them
PENALTY = "penalty"  # of the parameters alone
UNKNOWN = "unknown"
FLAT = 99  # as axis: the batch and all else are merged into one

Leaf = tuple[ast.expr, Scope]


@dataclass(frozen=True)
class Kind:
    """What terms an expression has; none for what neither learns nor belongs to a batch.

    `axis`: that of the batch, of ROWS and SHARE. `leaves`: the reductions over the batch that are in it.
    `coupled`: those of them that the expression is not linear in. `settings`: the batch sizes of the settings by which
    sums are divided in it. `unclear`: what losses are added up for each entry of, samples or outputs of layers.
    `scaled`: numbers of samples that rows are multiplied by. `is_weighed`: whether the rows are divided by a sum over
    the batch, so that their sum does not grow with it.
    """

    parts: frozenset[str] = frozenset()
    axis: int = 0
    leaves: frozenset[Leaf] = frozenset()
    coupled: frozenset[Leaf] = frozenset()
    settings: frozenset[Leaf] = frozenset()
    unclear: frozenset[Leaf] = frozenset()
    scaled: frozenset[Leaf] = frozenset()
    is_weighed: bool = False

    @property
    def has_rows(self) -> bool:
        return bool(self.parts & {ROWS, SHARE})


CONSTANT = Kind()


def of(part: str, axis: int = 0) -> Kind:
    return Kind(frozenset([part]), axis)


def join(kinds: Iterable[Kind]) -> Kind:
    """Return the kind of a sum of these, or of one of them of which it is not known which."""
    found = CONSTANT
    for kind in kinds:
        found = _add(found, kind)
    return found


def _add(left: Kind, right: Kind) -> Kind:
    parts = left.parts | right.parts
    axis = left.axis if left.has_rows else right.axis
    is_row = ROWS in parts or (SHARE in parts and parts - {SHARE, PENALTY})  # a scalar is added to every row
    found = _merged([left, right], {ROWS} if is_row else {SHARE} if SHARE in parts else parts, axis)
    of_samples = [kind for kind in (left, right) if kind.parts & {ROWS, SHARE, SUM}]
    return replace(found, is_weighed=found.is_weighed and all(kind.is_weighed for kind in of_samples))


def multiply(left: Kind, right: Kind) -> Kind:
    if not left.parts or not right.parts:
        merged = _merged([left, right], left.parts | right.parts, left.axis if left.parts else right.axis)
        factor = right if left.parts else left
        return replace(merged, coupled=merged.coupled | factor.leaves) if merged.parts else merged
    if left.parts == {PER} or right.parts == {PER}:
        return per_size(right if left.parts == {PER} else left)
    if left.has_rows or right.has_rows:
        rows, other = (left, right) if left.has_rows else (right, left)
        merged = _merged([left, right], {SHARE if SHARE in left.parts | right.parts else ROWS}, rows.axis)
        # A row with a sum or a mean of all samples in it, as `x - x.mean(0)`, is multiplied, or another row by one.
        return replace(merged, coupled=merged.coupled | (merged.leaves if other.has_rows else other.leaves))
    for weak in ({PENALTY}, {PENALTY, UNKNOWN}, {PENALTY, UNKNOWN, GLOBAL}):  # a factor, not a loss of samples
        for one, other in ((left, right), (right, left)):
            if one.parts <= weak:
                return _merged([one, other], other.parts)
    return _coupled([left, right])


def product(left: Kind, right: Kind, leaf: Leaf) -> Kind:
    """Return the kind of a matrix product, a sum over the samples where `x.t() @ y` runs over their axis."""
    if left.has_rows and right.has_rows and left.axis in (1, -1) and right.axis == 0:
        merged = _merged([left, right], {MEAN if SHARE in left.parts | right.parts else SUM})
        return replace(merged, leaves=merged.leaves | {leaf}, coupled=merged.coupled | merged.leaves)
    return multiply(left, right)


def divide(left: Kind, right: Kind) -> Kind:
    """Return the kind of a quotient whose divisor is not just the number of samples."""
    if not right.parts or right.parts == {PER}:
        merged = _merged([left, right], left.parts, left.axis)
        return replace(merged, coupled=merged.coupled | right.leaves) if left.parts else merged
    if right.has_rows:
        return _merged([left, right], {ROWS}, right.axis)
    if right.parts <= {PENALTY, GLOBAL}:
        return left if left.parts else right
    if right.parts <= {UNKNOWN, PENALTY, GLOBAL}:  # the number of samples, or not
        merged = _merged(
            [left, right], (left.parts - {SUM}) | {UNKNOWN} if SUM in left.parts else left.parts, left.axis
        )
        return replace(merged, coupled=merged.coupled | merged.leaves) if right.leaves else merged
    if left.has_rows:
        return weighed(left, right.coupled | right.leaves, right.parts == {SUM})
    return _coupled([left, right])


def weighed(rows: Kind, totals: frozenset[Leaf], is_sum: bool) -> Kind:
    """Return the kind of rows that are divided by a sum, or a mean, over the batch: all of them by the same."""
    return replace(rows, coupled=rows.coupled | totals, is_weighed=rows.is_weighed or is_sum)


def per_size(kind: Kind, setting: Leaf | None = None) -> Kind:
    """Return the kind of an expression divided by the number of samples, or of those that count.

    `setting`: where the number is not counted, but the batch size of the settings.
    """
    if not kind.parts:
        return of(PER)
    if setting is not None and kind.parts & {SUM, ROWS}:
        kind = replace(kind, settings=kind.settings | {setting})
    if kind.has_rows:
        return replace(kind, parts=frozenset([SHARE]))
    return replace(kind, parts=frozenset(MEAN if part == SUM else part for part in kind.parts))


def nonlinear(kind: Kind) -> Kind:
    """Return the kind of a function that is applied to each element: exp, sqrt, clamp."""
    if kind.has_rows:
        return replace(kind, parts=frozenset([ROWS]), coupled=kind.coupled | kind.leaves, settings=frozenset())
    return kind if kind.parts <= {PENALTY, GLOBAL, UNKNOWN, PER} else _coupled([kind])


def reduced(kind: Kind, how: str, leaf: Leaf, axes: tuple[int, ...] | None, keeps: bool) -> Kind:
    """Return the kind of a SUM or MEAN over some axes; `axes`: None for all of them."""
    if kind.scaled and kind.parts == {UNKNOWN} and (axes is None or kind.axis in axes or kind.axis == FLAT):
        if how == MEAN:  # of rows that are multiplied by the number of samples
            return Kind(frozenset([SUM]), 0, kind.leaves | {leaf}, kind.coupled)
        return Kind(frozenset([UNKNOWN]), 0, kind.leaves | {leaf}, kind.coupled | {leaf})
    if kind.parts == {UNKNOWN}:
        kind = replace(kind, parts=frozenset([ROWS]), axis=0) if axes is None or 0 in axes else kind
    if not kind.has_rows:
        return replace(kind, unclear=frozenset()) if how == MEAN else kind  # of several losses
    if axes is not None and kind.axis != FLAT and kind.axis not in axes:
        removed = 0 if keeps else sum(0 <= axis < kind.axis for axis in axes)
        return replace(kind, axis=kind.axis - removed if kind.axis >= 0 else kind.axis)
    is_share = kind.parts == {SHARE} and how == SUM
    part = MEAN if is_share else how
    settings = kind.settings if is_share else frozenset()
    is_weighed = kind.is_weighed and part == SUM
    leaves, coupled = kind.leaves | {leaf}, kind.coupled
    return Kind(frozenset([part]), 0, leaves, coupled, settings, kind.unclear, is_weighed=is_weighed)


def coupled_by(kind: Kind, leaf: Leaf, part: str = COUPLED, axis: int = 0) -> Kind:
    """Return the kind of what a leaf computes from several samples together: a norm over them, ROWS of a softmax."""
    return Kind(frozenset([part]), axis, kind.leaves | {leaf}, kind.coupled | {leaf})


def without_gradient(kind: Kind) -> Kind:
    """Return the kind of a sum or a mean without its gradient, which couples samples where it is a factor of a loss."""
    if kind.parts == {COUPLED}:
        return Kind(coupled=kind.leaves)
    return Kind(leaves=kind.leaves, coupled=kind.coupled) if kind.parts <= {SUM, MEAN} else CONSTANT


def entry(kind: Kind) -> Kind:
    """Return the kind of an entry of a tensor, along its first axis."""
    return replace(kind, axis=kind.axis - 1) if kind.has_rows and 0 < kind.axis < FLAT else kind


def with_leaf(kind: Kind, leaf: Leaf) -> Kind:
    """Return the kind of a sum that is a reduction over the batch as a whole."""
    return replace(kind, leaves=kind.leaves | {leaf}) if kind.parts <= {SUM, MEAN} else kind


def summed_up(kind: Kind) -> Kind:
    """Return the kind of a sum in a loop over the samples of what each of them gives."""
    if kind.parts == {SHARE}:
        return of(MEAN)
    return of(SUM) if kind.parts - {PENALTY, GLOBAL} else kind  # what couples one sample's entries couples no samples


def added_up(kind: Kind, unclear: frozenset[Leaf]) -> Kind:
    """Return the kind of a sum of one loss after the other in a loop of which it is not known what it goes through."""
    return replace(kind, unclear=kind.unclear | unclear) if unclear and kind.parts & {SUM, MEAN, COUPLED} else kind


def _coupled(kinds: list[Kind]) -> Kind:
    leaves = frozenset().union(*(kind.leaves for kind in kinds))
    merged = _merged(kinds, {COUPLED})
    return replace(merged, coupled=merged.coupled | leaves)


def _merged(kinds: list[Kind], parts: Iterable[str], axis: int = 0) -> Kind:
    held = zip(*((k.leaves, k.coupled, k.settings, k.unclear, k.scaled) for k in kinds))
    is_weighed = any(kind.is_weighed for kind in kinds)
    found = Kind(frozenset(parts), axis, *(frozenset().union(*leaves) for leaves in held))  # type: ignore[arg-type]
    return replace(found, is_weighed=True) if is_weighed else found
