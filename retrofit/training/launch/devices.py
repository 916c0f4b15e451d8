"""Expressions that name a GPU by number, found where a device is asked for and followed to where the number is chosen.

A device can be a text ("cuda:0", f"cuda:{gpu}"), a number (`.cuda(0)`), an option or an entry of a configuration.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from retrofit.analysis.calls import argument_for, last_name
from retrofit.analysis.flow.bindings import arguments_for, bindings_of
from retrofit.analysis.flow.main_guard import is_main_guard
from retrofit.analysis.flow.sources import Origin, closure, functions_run, sources
from retrofit.analysis.flow.stored import literal_key
from retrofit.analysis.nodes import Places, walk
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Display
from retrofit.training.torch_api.launch import SET_DEVICE, TAKES_DEVICE
from retrofit.training.torch_api.output import LOGGER_METHODS
from retrofit.training.torch_api.runtime import DEVICE_CHOICES

from ..distributed.ranks.rank_texts import mentions_rank
from ..model.data_parallel import is_device_argument
from .commands import is_given_by_command
from .options import is_option, set_options

NUMBERED = re.compile(r"cuda:\d+")
# What a text begins with that ends in a number: of f"cuda:{gpu}", "cuda:{}".format(gpu), "cuda:%d" % gpu, "cuda:" + gpu
_BEFORE_NUMBER = re.compile(r"cuda:?")
_TEMPLATE = re.compile(r"cuda:(\{[^{}]*\}|%(\(\w+\))?[dis])")
_NAMES_DEVICE = re.compile(r"(^|_)(device|gpu|cuda)s?(_?(ids?|num|number|index|name|list))?($|_|\d)", re.IGNORECASE)
SHOWING = LOGGER_METHODS | {"print", "write", "log"}
_READING = {"get", "getenv", "pop"}  # of a configuration, or the environment
_TAKING_APART = {"split", "rsplit", "partition", "rpartition", "replace", "strip", "lstrip", "removeprefix"}
_COMPARING = {"startswith", "endswith", "count", "find", "index", "replace", "split", "strip", "lstrip", "rstrip"}


@dataclass(frozen=True)
class NamedDevice:
    """An expression that names the same GPU in every process; `is_text`: it is the text of a device."""

    node: ast.expr
    scope: Scope
    is_text: bool

    @property
    def is_literal(self) -> bool:
        return isinstance(self.node, ast.Constant)


def named_devices(analysis: Analysis, nodes: Places[Scope]) -> Iterator[NamedDevice]:
    """Yield each expression among `nodes`, or that a device among them comes from, that names a GPU by number."""
    search = _Search(analysis)
    for node, scope in nodes.of(ast.Constant, ast.JoinedStr, ast.BinOp, ast.Call):
        search.look_at(node, scope)
    yield from search.found.values()


def reads_numbers(analysis: Analysis, nodes: Places[Scope]) -> bool:
    """Return whether something needs the number in the text of a device: args.device[5], set_device(device)."""
    return any(_reads_number(analysis, *place) for place in nodes.of(ast.Call, ast.Attribute, ast.Subscript))


def _reads_number(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    if isinstance(node, ast.Call) and SET_DEVICE in analysis.called(node, scope):
        return any(_is_device(analysis, part, scope) for part in (*node.args, *(k.value for k in node.keywords)))
    parent = scope.source.parents.get(node)
    if isinstance(node, ast.Attribute) and node.attr == "index":
        return not (isinstance(parent, ast.Call) and parent.func is node) and _is_device(analysis, node.value, scope)
    if isinstance(node, ast.Attribute):
        return node.attr in _TAKING_APART and _is_device(analysis, node.value, scope)
    is_place = isinstance(node, ast.Subscript) and not isinstance(literal_key(node.slice), str)
    return is_place and _is_device(analysis, node.value, scope)  # type: ignore[attr-defined]


def _is_device(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether an expression is a device, or its text: by its name where nothing else is known."""
    if isinstance(node, ast.Call) and node.args and analysis.called(node, scope) & DEVICE_CHOICES:
        return _is_device(analysis, node.args[0], scope)
    if "torch.device" in analysis.named(node, scope) or (isinstance(node, ast.Constant) and _is_numbered(node)):
        return True
    return isinstance(node, (ast.Name, ast.Attribute)) and last_name(node).lower().endswith("device")


class _Lead(NamedTuple):
    """An expression that a device comes from, the one where the device is asked for, and how certain.

    `is_certain`: it is a device whatever it looks like.
    """

    origin: Origin
    place: tuple[ast.expr, Scope]
    is_certain: bool

    def to(self, origins: Iterable[Origin]) -> list[_Lead]:
        return [_Lead(origin, self.place, self.is_certain) for origin in origins]


class _Search:
    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.found: dict[ast.AST, NamedDevice] = {}

    def look_at(self, node: ast.expr, scope: Scope) -> None:
        is_text = isinstance(node, ast.Constant) and _is_numbered(node)
        if (is_text or self._is_built(node, scope)) and not _is_for_reading(node, scope):
            self._add(node, scope, is_text=True)
        if isinstance(node, ast.Call):
            asked = [(Origin(given, scope), is_certain) for given, is_certain in self._asked_for(node, scope)]
            leads = [_Lead(origin, (origin.node, scope), is_certain) for origin, is_certain in asked]  # type: ignore[arg-type]
            for _ in closure(leads, self._follow):
                pass

    def _asked_for(self, call: ast.Call, scope: Scope) -> Iterator[tuple[ast.expr, bool]]:
        """Yield the arguments of a call that are devices, and whether that is certain whatever they look like."""
        if self.analysis.functions_called(call, scope):
            return  # what is made of it in there is followed back to here
        names = self.analysis.called(call, scope)
        named = {keyword.arg: keyword.value for keyword in call.keywords}
        first = call.args[0] if call.args and not isinstance(call.args[0], ast.Starred) else None
        if "torch.device" in names:
            number = argument_for(call, ["type", "index"], "index")
            given = number if number is not None else named.get("device", named.get("type", first))
            yield from ((part, True) for part in [given] if part is not None)
            return
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if first is not None and (names & TAKES_DEVICE or method in ("cuda", "to")):
            yield first, method != "to" or bool(names & TAKES_DEVICE)
        if "torch.load" in names and len(call.args) > 1:
            yield call.args[1], True
        is_of_torch = method in ("cuda", "to") or any(name.startswith("torch") for name in names)
        for name in ("device", "map_location"):
            if name in named and (is_of_torch or not isinstance(named[name], ast.Constant)):
                yield named[name], is_of_torch and name == "map_location"

    def _follow(self, lead: _Lead) -> Iterable[_Lead]:
        """Return what a device comes from. What names its GPU is added; a number, at the place that asks for it."""
        node, scope, keys = lead.origin
        if isinstance(node, (ast.Dict, ast.IfExp, ast.BoolOp)):
            return self._alternatives(node, lead)
        if isinstance(node, (ast.Compare, ast.Lambda, ast.UnaryOp, ast.AugAssign)) or self._is_own(node, scope):
            return []
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self._of_name(node, lead)
        if isinstance(node, ast.Call) and not self._is_built(node, scope):
            return self._of_call(node, lead)
        if keys:
            return lead.to(sources(self.analysis, lead.origin))
        is_number = isinstance(node, ast.Constant) and type(node.value) is int and node.value >= 0
        if self._is_built(node, scope) or (isinstance(node, ast.Constant) and _is_numbered(node)):
            self._add(node, scope, is_text=True)
        elif is_number or (not isinstance(node, ast.Constant) and (lead.is_certain or self._names_device(node, scope))):
            self._add(*lead.place)
        return []

    def _alternatives(self, node: ast.Dict | ast.IfExp | ast.BoolOp, lead: _Lead) -> list[_Lead]:
        """Return each of the devices that an expression chooses from, as a place of its own."""
        parts = [node.body, node.orelse] if isinstance(node, ast.IfExp) else node.values
        origins = [lead.origin.to(part, keys=()) for part in parts]
        is_place = lead.place[0] is node
        return [_Lead(o, (o.node, o.scope) if is_place else lead.place, lead.is_certain) for o in origins]  # type: ignore[arg-type]

    def _of_name(self, node: ast.Name | ast.Attribute, lead: _Lead) -> Iterable[_Lead]:
        bindings = bindings_of(self.analysis, node, lead.origin.scope)
        if isinstance(node, ast.Attribute) and not bindings:
            return self._of_option(node, lead)
        if any(binding.kind == "item" for binding, _ in bindings):
            if lead.is_certain:
                self._add(*lead.place)
            return []
        parameters = [where for binding, where in bindings if binding.kind == "parameter"]
        is_named = lead.is_certain or bool(_NAMES_DEVICE.search(last_name(node)))
        if is_named and any(self._is_asked_for_by_command(node, where) for where in parameters):
            self._add(*lead.place)
        return lead.to(sources(self.analysis, lead.origin))

    def _of_option(self, node: ast.Attribute, lead: _Lead) -> list[_Lead]:
        """Return what a script sets an option to; where it does not, the user of the script chooses the device."""
        if not is_option(self.analysis, node, lead.origin.scope):
            return []
        given = set_options(self.analysis).get(node.attr, [])
        is_left = not any(_always_runs(given, statement, where) for statement, where in given)
        if is_left and (lead.is_certain or _NAMES_DEVICE.search(node.attr)):
            # A number may be meant for something else, too; a device that an option names is one everywhere.
            self._add(*((node, lead.origin.scope) if node.attr.lower().endswith("device") else lead.place))
        return lead.to(Origin(statement.value, where) for statement, where in given)

    def _is_asked_for_by_command(self, node: ast.expr, function: Scope) -> bool:
        is_given = any(value is not None for value, _ in arguments_for(self.analysis, last_name(node), function))
        return not is_given and is_given_by_command(self.analysis, function)

    def _of_call(self, node: ast.Call, lead: _Lead) -> Iterable[_Lead]:
        scope = lead.origin.scope
        if functions_run(self.analysis, node, scope):
            return lead.to(sources(self.analysis, lead.origin))
        if self.analysis.called(node, scope) & {"int", "str"} and node.args:
            return lead.to([lead.origin.to(node.args[0])])
        if self._names_device(node, scope) or (lead.is_certain and last_name(node.func) in _READING):
            self._add(*lead.place)
        return []

    def _names_device(self, node: ast.expr, scope: Scope) -> bool:
        """Return whether this is an element, or an entry, that is called a device: gpu_ids[0], config["device"]."""
        if isinstance(node, ast.Call):
            is_read = last_name(node.func) in _READING and bool(node.args)
            key = node.args[0] if is_read else None
        else:
            key = node.slice if isinstance(node, ast.Subscript) else None
        text = key.value if isinstance(key, ast.Constant) else None
        name = text if isinstance(text, str) else last_name(node.value) if isinstance(node, ast.Subscript) else ""
        return bool(_NAMES_DEVICE.search(name))

    def _is_own(self, node: ast.expr, scope: Scope) -> bool:
        """Return whether an expression is that of this process: its rank is part of it, or the runtime gives it."""
        if isinstance(node, ast.Call) and self.analysis.called(node, scope) & DEVICE_CHOICES:
            return True
        return mentions_rank(self.analysis, node, scope)

    def _is_built(self, node: ast.expr, scope: Scope) -> bool:
        """Return whether this puts a text like "cuda:0" together."""
        if isinstance(node, ast.JoinedStr) and len(node.values) > 1:
            first = node.values[0]
            if isinstance(first, ast.FormattedValue):  # f"{kind}:{gpu}"
                kinds, rest = self._texts(first.value, scope), node.values[1]
                return "cuda" in kinds and isinstance(rest, ast.Constant) and str(rest.value).startswith(":")
            return len(node.values) == 2 and bool(_BEFORE_NUMBER.fullmatch(str(first.value)))  # type: ignore[attr-defined]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            return any(_TEMPLATE.fullmatch(text) for text in self._texts(node.left, scope))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            first_part: ast.expr = node
            while isinstance(first_part, ast.BinOp):
                first_part = first_part.left
            is_whole = not _is_added_to(node, scope)
            return is_whole and any(_BEFORE_NUMBER.fullmatch(text) for text in self._texts(first_part, scope))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            texts = self._texts(node.func.value, scope) if node.func.attr in ("format", "join") else set()
            if node.func.attr == "format":
                return any(_TEMPLATE.fullmatch(text) for text in texts)
            parts = getattr(node.args[0], "elts", []) if node.args else []
            return ":" in texts and bool(parts) and "cuda" in self._texts(parts[0], scope)
        return False

    def _texts(self, node: ast.expr, scope: Scope) -> set[str]:
        values = self.analysis.evaluate(node, scope)
        nodes = [value.node for value in values if isinstance(value, Display)]
        return {part.value for part in nodes if isinstance(part, ast.Constant) and isinstance(part.value, str)}

    def _add(self, node: ast.expr, scope: Scope, is_text: bool = False) -> None:
        if node in self.found or self._is_own(node, scope):
            return
        around = [outer for outer in scope.source.ancestors(node) if isinstance(outer, ast.Call)]
        if any(self.analysis.called(call, scope) & DEVICE_CHOICES for call in around):
            return
        if not is_device_argument(self.analysis, node, scope):
            self.found[node] = NamedDevice(node, scope, is_text)


def _is_numbered(node: ast.Constant) -> bool:
    return isinstance(node.value, str) and bool(NUMBERED.fullmatch(node.value))


def _is_added_to(node: ast.BinOp, scope: Scope) -> bool:
    """Return whether this is the first part of a longer sum of texts."""
    parent = scope.source.parents.get(node)
    return isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Add) and parent.left is node


def _always_runs(given: list[tuple[ast.Assign, Scope]], statement: ast.AST, scope: Scope) -> bool:
    """Return whether a statement is always made, or one of `given` in the other branch of the `if` around it."""
    inner = statement
    for outer in scope.source.ancestors(statement):
        if outer is scope.node:
            return True
        if isinstance(outer, ast.If) and not is_main_guard(outer):
            other = outer.body if inner in outer.orelse else outer.orelse
            others = {part for branch in other for part in walk(branch)}
            if not any(made in others for made, _ in given):
                return False
        elif isinstance(outer, (ast.Try, ast.For, ast.While)):
            return False
        inner = outer
    return True


def _is_for_reading(node: ast.expr, scope: Scope) -> bool:
    """Return whether a text is only compared with, shown, or says what a map_location leads away from."""
    parent = scope.source.parents.get(node)
    if isinstance(parent, (ast.Compare, ast.Raise)) or (isinstance(parent, ast.Dict) and node in parent.keys):
        return True
    name = last_name(parent.func) if isinstance(parent, ast.Call) else ""
    return name in _COMPARING or (name in SHOWING and not isinstance(node, ast.Constant))
