"""Mistakes with samples: orders, shards, batches, random streams."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .source import RANK, RANK_NAMES, WORLD, WORLD_NAMES, Mutation, Source

SAMPLER = r"([\w.]+\.)?DistributedSampler"
SEEDING = r"([\w.]+\.)?(manual_seed|seed|seed_everything|set_seed|manual_seed_all)"


def drop_set_epoch(source: Source) -> Iterator[Mutation]:
    """`set_epoch` is not called."""
    for call in source.calls(r"[\w.]+\.set_epoch"):
        if isinstance(source.parents[call], ast.Expr):
            yield source.removed(source.statement(call))


def set_epoch_constant(source: Source) -> Iterator[Mutation]:
    """`set_epoch` always gets the same number."""
    for call in source.calls(r"[\w.]+\.set_epoch"):
        if call.args:
            yield source.replaced(call.args[-1], "0")


def loader_not_sharded(source: Source) -> Iterator[Mutation]:
    """Every rank trains on the whole data set."""
    for call in source.calls(r"[\w.]+\.distribute_loader"):
        yield source.replaced(call, source.segment(call.args[0]))
    for call in source.calls(SAMPLER):
        shuffles = not any(k.arg == "shuffle" and ast.unparse(k.value) == "False" for k in call.keywords)
        kind = "RandomSampler" if shuffles else "SequentialSampler"
        yield source.replaced(call, f"_torch.utils.data.{kind}({source.segment(call.args[0])})")


def sampler_rank_zero(source: Source) -> Iterator[Mutation]:
    """Every rank takes the shard of rank 0."""
    for call in source.calls(SAMPLER):
        yield source.replaced(call, f"{_with(source, call, 'rank', '0', WORLD)}")


def sampler_one_replica(source: Source) -> Iterator[Mutation]:
    """The sampler divides by one process."""
    for call in source.calls(SAMPLER):
        yield source.replaced(call, f"{_with(source, call, 'rank', '0', '1')}")


def sampler_seed_by_rank(source: Source) -> Iterator[Mutation]:
    """Each rank's sampler shuffles with another seed."""
    for call in source.calls(SAMPLER):
        if not any(k.arg == "shuffle" and ast.unparse(k.value) == "False" for k in call.keywords):
            yield source.with_argument(call, "seed", f"11 + {RANK}")


def slice_from_zero(source: Source) -> Iterator[Mutation]:
    """The ranks' slices overlap: each begins with the first sample."""
    for part in source.of(ast.Slice):
        if part.lower is not None and part.step is not None and RANK_NAMES.search(source.segment(part.lower)):
            yield source.replaced(part.lower, "0")
    for call in source.calls(r"range"):
        if len(call.args) == 3 and RANK_NAMES.search(source.segment(call.args[0])):
            yield source.replaced(call.args[0], "0")
    for call in source.calls(r"([\w.]+\.)?islice"):
        if len(call.args) == 4 and RANK_NAMES.search(source.segment(call.args[1])):
            yield source.replaced(call.args[1], "0")


def stride_of_one(source: Source) -> Iterator[Mutation]:
    """The ranks' slices are not apart: each takes every sample after its first."""
    for part in source.of(ast.Slice):
        if part.step is not None and WORLD_NAMES.search(source.segment(part.step)):
            yield source.replaced(part.step, "1")
    for call in source.calls(r"range|([\w.]+\.)?islice"):
        if len(call.args) >= 3 and WORLD_NAMES.search(source.segment(call.args[-1])):
            yield source.replaced(call.args[-1], "1")


def split_by_rank(source: Source) -> Iterator[Mutation]:
    """Each rank splits the data with another seed."""
    for call in source.calls(r"([\w.]+\.)?random_split"):
        statement = source.statement(call)
        seeds = [
            inner
            for inner in ast.walk(call)
            if isinstance(inner, ast.Call) and ast.unparse(inner.func).endswith("manual_seed")
        ]
        if seeds:
            yield source.replaced(seeds[0].args[0], f"{source.segment(seeds[0].args[0])} + {RANK}")
        else:
            yield source.with_lines(statement, before=[f"_torch.manual_seed(5 + {RANK})"])


def classes_from_set(source: Source) -> Iterator[Mutation]:
    """Numbers come from the order of a set, which differs between processes."""
    for call in source.calls(r"sorted"):
        if len(call.args) == 1 and not call.keywords and isinstance(call.args[0], (ast.Call, ast.Set, ast.SetComp)):
            inner = source.segment(call.args[0])
            if inner.startswith(("set(", "{")):
                yield source.replaced(call, f"list({inner})")


def same_seed(source: Source) -> Iterator[Mutation]:
    """Every rank draws the same augmentation and noise: the rank is left out of the seed."""
    for call in source.calls(SEEDING):
        for argument in call.args[:1]:
            if isinstance(argument, ast.BinOp) and RANK_NAMES.search(source.segment(argument)):
                yield source.replaced(argument, source.segment(argument.left))


def batch_not_divided(source: Source) -> Iterator[Mutation]:
    """Each rank takes the batch of all: the division is left out."""
    for node in source.of(ast.BinOp):
        if (
            isinstance(node.op, ast.FloorDiv)
            and WORLD_NAMES.search(source.segment(node.right))
            and "batch" in source.segment(node.left)
        ):
            yield source.replaced(node, source.segment(node.left))


def skip_a_batch(source: Source) -> Iterator[Mutation]:
    """Rank 1 leaves out its third batch."""
    for loop in source.of(ast.For):
        if any(
            ast.unparse(n.func).endswith(".backward") for n in ast.walk(loop) if isinstance(n, ast.Call)
        ) and not any(
            isinstance(inner, (ast.For, ast.While)) and _has_backward(inner)
            for inner in ast.walk(loop)
            if inner is not loop
        ):
            name = f"_third_{loop.lineno}"
            lines = [
                f"_n = globals()['{name}'] = globals().get('{name}', 0) + 1",
                f"if {RANK} == 1 and _n == 3: continue",
            ]
            yield source.with_lines(loop.body[0], before=lines)


def _has_backward(node: ast.AST) -> bool:
    return any(ast.unparse(n.func).endswith(".backward") for n in ast.walk(node) if isinstance(n, ast.Call))


def _with(source: Source, call: ast.Call, name: str, value: str, world: str) -> str:
    kept = [source.segment(call.args[0])]
    kept += [f"{k.arg}={source.segment(k.value)}" for k in call.keywords if k.arg not in ("rank", "num_replicas")]
    return f"{source.segment(call.func)}({', '.join([*kept, f'num_replicas={world}', f'{name}={value}'])})"


OPERATORS = {
    drop_set_epoch: ("RF101", "RF507"),
    set_epoch_constant: ("RF101", "RF507"),
    loader_not_sharded: ("RF103", "RF104"),
    sampler_rank_zero: ("RF103", "RF111"),
    sampler_one_replica: ("RF103", "RF111", "RF105"),
    sampler_seed_by_rank: ("RF103", "RF108"),
    slice_from_zero: ("RF103", "RF104", "RF111", "RF108"),
    stride_of_one: ("RF103", "RF104", "RF111", "RF108"),
    split_by_rank: ("RF108",),
    classes_from_set: ("RF108",),
    same_seed: ("RF109",),
    batch_not_divided: ("RF107",),
    skip_a_batch: ("RF106", "RF402", "RF103", "RF202"),
}
