"""Kinds of the attributes of objects: `self.loss`, `output.loss` of what a model returns, `x.T` of a tensor."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from retrofit.analysis.flow.bindings import class_of_own
from retrofit.analysis.flow.keys import Key, Keys
from retrofit.analysis.flow.stored import changed_on_same, changes_of, set_from_outside, set_on_same
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.fields import given_to_attribute, given_to_own
from retrofit.analysis.values.kinds import Instance
from retrofit.training.torch_api.modules import is_layer_class
from retrofit.training.torch_api.tensors import SHAPE_ATTRIBUTES

from ..gathering.dimensions import swaps_first_axes
from ..wrapped import objects_inside
from . import kinds
from .kinds import CONSTANT, Kind

if TYPE_CHECKING:
    from .reader import Frame, LossReader


class AttributeReader:
    """Answers of which kind an attribute is."""

    def __init__(self, reader: LossReader) -> None:
        self.reader, self.analysis = reader, reader.analysis

    def kind(self, node: ast.Attribute, scope: Scope, frame: Frame | None, keys: Keys) -> Kind:
        owner = class_of_own(node, scope)
        if owner is not None:
            return self._of_own(node, scope, owner, frame, keys)
        if node.attr in SHAPE_ATTRIBUTES:
            return CONSTANT
        objects = [v for v in self.analysis.evaluate(node.value, scope) if isinstance(v, Instance)]
        objects = objects or objects_inside(self.analysis, node.value, scope)
        own = [self._of_own(node, scope, part.scope, frame, keys) for part in objects]
        given = [*given_to_attribute(self.analysis, node, scope), *set_on_same(self.analysis, node, scope)]
        found = kinds.join([*own, *(self.reader.kind(value, where, frame, keys) for value, where in given)])
        if not objects and not given:
            found = self._of_library(node, scope, frame, keys)
        for statement, where in changed_on_same(self.analysis, node, scope):
            found = self.reader.changed(found, statement, where, frame)
        return found

    def _of_library(self, node: ast.Attribute, scope: Scope, frame: Frame | None, keys: Keys) -> Kind:
        """Return the kind of an attribute of a tensor, or of what a model of a library gives."""
        swaps = swaps_first_axes(self.analysis, node, scope)
        is_row = swaps and keys in ((None,), (Key.ELEMENT,))
        base = self.reader.kind(node.value, scope, frame, () if is_row else keys)
        if swaps and base.has_rows and base.axis in (0, 1):
            return replace(base, axis=0 if is_row else 1 - base.axis)
        is_loss = "loss" in node.attr.lower() and (base.has_rows or base.parts == {kinds.UNKNOWN})
        return kinds.of(kinds.MEAN) if is_loss else base

    def _of_own(self, node: ast.Attribute, scope: Scope, owner: Scope, frame: Frame | None, keys: Keys) -> Kind:
        """Return the kind of self.loss, which any method may have set, or of that attribute of another object."""
        bindings = self.analysis.classes.attribute_bindings(owner, node.attr)
        first = kinds.join(self.reader.of_binding(binding, where, frame, keys) for binding, where in bindings)
        given = [(value, where, keys) for value, where in given_to_own(self.analysis, owner, node.attr)]
        given += [(value, at, (*path, *keys)) for value, at, path in set_from_outside(self.analysis, owner, node.attr)]
        first = kinds.join([first, *(self.reader.kind(value, where, frame, inner) for value, where, inner in given)])
        first = kinds.join([first, *self.reader.put_in(node, scope, frame, keys)])
        for statement, where in changes_of(self.analysis, owner, node.attr):
            first = self.reader.changed(first, statement, where, frame)
        first = self.reader.with_entries_changed(first, node, scope, frame, keys)
        is_layer = any(map(is_layer_class, self.analysis.named(node, scope)))
        return first if first.parts or not is_layer else kinds.of(kinds.PENALTY)
