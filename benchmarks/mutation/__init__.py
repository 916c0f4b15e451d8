"""Mutation operators: mistakes that people make in distributed training, made on purpose in sound scripts.

An operator takes a `Source` and yields the mutations that it can make of it, one per place. `causes` are the codes of
the rules that a right diagnosis may name; empty where any cause is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from . import collectives, data, evaluation, files, gradients, loss, model, rates, resume
from .source import Mutation, Source

Find = Callable[[Source], Iterator[Mutation]]


@dataclass(frozen=True)
class Operator:
    name: str  # "drop_set_epoch"
    title: str  # what the mistake is, from the function's docstring
    causes: tuple[str, ...]
    find: Find


OPERATORS: dict[str, Operator] = {
    find.__name__: Operator(find.__name__, (find.__doc__ or "").strip().rstrip("."), causes, find)
    for module in (data, model, gradients, loss, rates, evaluation, collectives, files, resume)
    for find, causes in module.OPERATORS.items()
}


def mutations(text: str) -> Iterator[tuple[Operator, Mutation]]:
    """Yield every mutation of a file that is a program, each text once."""
    source, seen = Source(text), {text}
    for operator in OPERATORS.values():
        for mutation in operator.find(source):
            if mutation.text not in seen:
                seen.add(mutation.text)
                with suppress(
                    SyntaxError
                ):  # a statement that shares its line with others, or a `continue` outside a loop
                    compile(mutation.text, "mutant", "exec", dont_inherit=True)
                    yield operator, mutation
