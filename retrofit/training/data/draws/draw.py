"""Draws of a training: the expressions that give batches, how each is drawn, and why one cannot be split."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from retrofit.analysis.calls import last_name
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope

Place = tuple[ast.expr, Scope]
Problem = tuple[ast.AST, Scope, str]

RANDOM = "random"  # drawn at random, by each rank for itself
SLICE = "slice"  # of what is the same on all ranks
CALL = "call"  # by a function of the script
PARTS = "parts"  # one slice after another: order.split(size)
SEQUENCES = "sequences"  # what lays them side by side, as rows of a tensor
COLUMNS = "columns"  # as its columns


@dataclass(frozen=True)
class Draw:
    """An expression with an entry per sample of a batch, and the reads of the batch size that it depends on."""

    node: ast.expr
    scope: Scope
    sizes: tuple[Place, ...]
    kind: str


@dataclass
class Draws:
    """What the training paths draw: batches, random orders of the data, and why one cannot be split across ranks.

    `split` are the calls that take this rank's samples already, `sequences` those among them that take its part of all
    data at once, `whole` the calls of generators of the training that an evaluation goes through.
    """

    batches: dict[ast.expr, Draw] = field(default_factory=dict)
    orders: dict[ast.Call, Scope] = field(default_factory=dict)
    split: dict[ast.Call, Scope] = field(default_factory=dict)
    whole: dict[ast.Call, Scope] = field(default_factory=dict)
    sequences: dict[ast.expr, Scope] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    calls: set[ast.AST] = field(default_factory=set)  # of functions that draw: get_batch("train")

    @property
    def nodes(self) -> set[ast.expr]:
        """The expressions that are batches: found ones, and those that are split already."""
        return {*self.batches, *self.split}

    @property
    def split_sizes(self) -> list[Place]:
        """The reads of the batch size in what is split already."""
        calls = [(part, scope) for node, scope in self.split.items() for part in walk(node)]
        sizes = [(c.args[0], s) for c, s in calls if isinstance(c, ast.Call) and last_name(c) == "batch_of_ranks"]
        given = [(node.args[1], scope) for node, scope in self.split.items() if len(node.args) > 1]  # of own_draw
        return sizes + given

    @property
    def laid_out(self) -> dict[ast.expr, Scope]:
        """What lays sequences side by side, split or not."""
        found = {draw.node: draw.scope for draw in self.batches.values() if draw.kind in (SEQUENCES, COLUMNS)}
        return {**self.sequences, **found}

    @property
    def is_used(self) -> bool:
        return bool(self.nodes) and not self.problems
