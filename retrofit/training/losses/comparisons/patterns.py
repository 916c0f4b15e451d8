"""Patterns of einsum and of einops, in which each axis has a letter or a name."""

from __future__ import annotations

import ast
from itertools import chain
from string import ascii_letters

from retrofit.analysis.calls import argument_for


def equation_of(node: ast.Call) -> tuple[list[str], str, list[ast.expr]] | None:
    """Return the axes of the operands and of the result of an einsum, one letter for each, and its operands.

    torch.einsum("bc,bc->b", x, y) has its pattern first, einops.einsum(x, y, "b i, b i -> b") last, with names.
    """
    given = node.args
    if given and _text(given[0]):
        (pattern, operands), is_named = (_text(given[0]), given[1:]), False
    elif given and _text(given[-1]):
        (pattern, operands), is_named = (_text(given[-1]), given[:-1]), True
    else:
        return None
    if "->" not in pattern and (is_named or "." in pattern):
        return None
    inputs, arrow, output = pattern.partition("->")
    if not arrow:  # the letters that are there once, in the order of the alphabet
        letters_of = [letter for letter in inputs if letter.isalpha()]
        output = "".join(sorted(letter for letter in letters_of if letters_of.count(letter) == 1))
    if not is_named:
        return inputs.replace(" ", "").split(","), output.replace(" ", ""), list(operands)
    sides = [side.split() for side in (*inputs.split(","), output)]
    letters = dict(zip(dict.fromkeys(chain(*sides)), ascii_letters))
    if any(name not in letters for name in chain(*sides)):
        return None
    axes = ["".join(letters[name] for name in side) for side in sides]
    return axes[:-1], axes[-1], list(operands)


def reduction_of(node: ast.Call, axis: int) -> tuple[str, int | None] | None:
    """Return how einops.reduce(x, "b c -> c", "mean") reduces, and where the axis of the samples is then.

    None in place of that where they are gone, and in place of both where it cannot be read.
    """
    names = ["tensor", "pattern", "reduction"]
    pattern, how = (_text(argument_for(node, names, name)) for name in names[1:])
    before, _, after = pattern.partition("->")
    given, left = axes_in_pattern(before), axes_in_pattern(after)
    if not how or not pattern or axis >= len(given):
        return None
    samples = given[axis][:1]
    place = next((number for number, inside in enumerate(left) if samples and samples[0] in inside), None)
    return how, place


def axes_in_pattern(side: str) -> list[list[str]]:
    """Return the names in each axis of one side of a pattern."""
    groups: list[list[str]] = []
    is_inside = False
    for token in side.replace("(", " ( ").replace(")", " ) ").split():
        if token in "()":
            is_inside = token == "("
            groups += [[]] if is_inside else []
        elif is_inside:
            groups[-1].append(token)
        else:
            groups.append([token])
    return groups


def _text(node: ast.expr | None) -> str:
    value = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
    return value if isinstance(value, str) else ""
