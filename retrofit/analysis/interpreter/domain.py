"""The interface between the interpreter and a library: where values differ, and what operations make."""

from __future__ import annotations

import ast
from collections.abc import Collection, Container
from typing import Protocol

from ..scopes import Scope
from .state import Flow, Root


class Domain(Protocol):
    """The meaning of what is not part of the program itself.

    `lasting`: the kinds of values that belong to no batch, though they differ between processes.
    """

    @property
    def lasting(self) -> Collection[str]: ...

    def element(self, drawn: ast.expr, scope: Scope) -> Flow | None:
        """Return what one turn of an iteration gives, None where the domain knows nothing about it."""

    def taken_apart(self, drawn: ast.expr, scope: Scope, flow: Flow) -> Flow:
        """Return what an iteration gives, as that which the loop takes apart where it does."""

    def made_of_each(self, node: ast.expr, scope: Scope, drawn: Flow) -> Flow | None:
        """Return what a comprehension makes that goes through `drawn` last, None where its elements say it."""

    def is_batch_loop(self, loop: ast.AST) -> bool:
        """Return whether each turn of a loop is about another batch."""

    def place(self, node: ast.expr, scope: Scope, loops: tuple[ast.AST, ...], kind: str, is_open: bool) -> Root | None:
        """Return an expression as one through which a value can leave its batch, None where it is not in one."""

    def name(self, node: ast.expr, scope: Scope, flow: Flow) -> Flow:
        """Return what is known of a variable's value besides where it came from."""

    def divisor(self, node: ast.expr, scope: Scope, dividend: Flow) -> Flow:
        """Return what a number is that is written down, where it divides a value."""

    def is_apart(self, flow: Flow) -> bool:
        """Return whether processes can come to different ends of a test, or turns of a loop, by a value."""

    def is_decided_together(self, test: ast.AST, scope: Scope) -> bool:
        """Return whether a test has one end in all processes, although they differ in what it is about."""

    def is_count_check(self, test: ast.expr, scope: Scope) -> bool:
        """Return whether a test compares what is counted over all batches with a number."""

    def counts_samples(self, flow: Flow) -> bool:
        """Return whether a value is a number of samples of all processes, as each counts its own."""

    def is_random(self, node: ast.expr, scope: Scope) -> bool:
        """Return whether an expression draws random numbers, of which every process has its own."""

    def is_about_shape(self, node: ast.expr) -> bool:
        """Return whether an expression tells of a value how large it is, and nothing of its numbers."""

    def attribute(self, base: Flow, name: str) -> Flow:
        """Return what an attribute of a value that differs is."""

    def set_unseen(self, node: ast.Attribute, scope: Scope, followed: Container[Scope]) -> Flow:
        """Return what an attribute is that only functions set which were not followed."""

    def shows_itself(self, call: ast.Call) -> bool:
        """Return whether a method shows its own object: `frame.to_csv(path)`."""

    def hooked(self, call: ast.Call) -> Flow | None:
        """Return what a function gets from then on that a call hooks on something; None for other calls."""

    def item(self, base: Flow, index: ast.expr, key: Flow) -> Flow:
        """Return what an element of a value that differs is."""

    def operation(self, node: ast.expr, parts: list[Flow]) -> Flow:
        """Return what an operator makes of values."""

    def call(self, node: ast.Call, scope: Scope, receiver: Flow, given: list[Flow]) -> Flow:
        """Return what a call of something outside the program gives."""

    def is_opaque(self, call: ast.Call, scope: Scope) -> bool:
        """Return whether a call runs a function of the program that is not to be looked into."""

    def is_made_unseen(self, owner: Scope) -> bool:
        """Return whether the constructor of a class is not to be looked into."""

    def keeps(self, call: ast.Call) -> bool:
        """Return whether an object of a library may keep what a call gives it."""

    def kept(self, flow: Flow) -> Flow:
        """Return what is known of a value in a list that outlives its batch."""

    def show(self, node: ast.AST, scope: Scope, kind: str, flows: list[tuple[ast.expr, Flow]]) -> None:
        """Take note that values are shown, kept or decide something."""

    def sink(self, call: ast.Call, scope: Scope, is_discarded: bool) -> str:
        """Return in which way a call shows what it is given, "" where it does not."""

    def not_shown(self, call: ast.Call, scope: Scope) -> list[ast.expr]:
        """Return the arguments of a call that it does not show, where it shows others."""

    def sink_of_entry(self, target: ast.Subscript, scope: Scope) -> str:
        """Return in which way an entry of something shows what it is set to, or decides by it; "" where it does not."""

    def sink_of_factor(self, factor: ast.expr, scope: Scope, flow: Flow, other: Flow) -> str:
        """Return in which way an operation decides by one of its two operands; "" where it does not."""

    def either(self, flows: list[Flow]) -> Flow:
        """Return what is known of a value that is one of several, of which others are used elsewhere."""

    def draws(self, node: ast.expr, scope: Scope) -> Flow | None:
        """Return what each element of a value is, where processes draw other elements; None elsewhere."""

    def looked_up(self, key: Flow) -> Flow:
        """Return what an index that differs between processes gives of what is the same in all."""

    def hands_on(self, call: ast.Call, scope: Scope) -> bool:
        """Return whether a call gives the elements of its first argument one by one."""

    def result(self, call: ast.Call, scope: Scope) -> Flow | None:
        """Return what a call gives that brings values of all processes together, None for other calls."""

    def changed(self, call: ast.Call, scope: Scope) -> list[ast.expr]:
        """Return the arguments of a call that are the same in every process when it is done."""

    def written(self, call: ast.Call, scope: Scope) -> list[ast.expr]:
        """Return the arguments of a call that hold what it gives when it is done."""

    def attributes_brought_together(self, call: ast.Call, scope: Scope) -> list[str]:
        """Return the attributes of a call's first argument that are the same in every process when it is done."""

    def decides(self, branch: list[ast.stmt], scope: Scope) -> bool:
        """Return whether it matters beyond a batch that a branch is taken."""
