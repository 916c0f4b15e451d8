"""Mistakes with files, logs and the launch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .source import RANK_NAMES, WORLD, Mutation, Source

SAVES = re.compile(r"\b(torch\.save|save_checkpoint|\.save\(|savez|np\.save)")
LOGS = re.compile(r"add_scalar|SummaryWriter|writerow|\.write\(|wandb\.log")


def saved_on_every_rank(source: Source) -> Iterator[Mutation]:
    """Every rank writes the checkpoint."""
    for statement in _guards(source):
        if SAVES.search(source.segment(statement)):
            yield source.unguarded(statement)


def logged_on_every_rank(source: Source) -> Iterator[Mutation]:
    """Every rank writes logs and curves."""
    for statement in _guards(source):
        text = source.segment(statement)
        if LOGS.search(text) and not SAVES.search(text):
            yield source.unguarded(statement)
    for call in source.calls(r"[\w.]+\.path_on_main"):
        yield source.replaced(call, source.segment(call.args[0]))


def wrapper_saved(source: Source) -> Iterator[Mutation]:
    """The names in the checkpoint have the wrapper's prefix."""
    for node in source.of(ast.Attribute):
        if node.attr == "module" and re.search(
            r"\.module\.state_dict\(\)$",
            source.segment(source.parents[source.parents[node]]) if source.parents[node] in source.parents else "",
        ):
            yield source.replaced(node, source.segment(node.value))
    for call in source.calls(r"[\w.]+\.unwrap_model"):
        if "state_dict" in source.segment(source.parents[call]):
            yield source.replaced(call, source.segment(call.args[0]))


def loaded_without_device(source: Source) -> Iterator[Mutation]:
    """A checkpoint is loaded without map_location."""
    for call in source.calls(r"torch\.load"):
        if any(keyword.arg == "map_location" for keyword in call.keywords):
            yield source.without_argument(call, "map_location")


def axis_grows_by_ranks(source: Source) -> Iterator[Mutation]:
    """The axis of a curve grows with the number of ranks."""
    for call in source.calls(r"[\w.]+\.add_scalar"):
        given = [k.value for k in call.keywords if k.arg == "global_step"] or call.args[2:3]
        if given:
            yield source.replaced(given[0], f"({source.segment(given[0])}) * {WORLD}")


def port_in_the_script(source: Source) -> Iterator[Mutation]:
    """The port is written into the script."""
    for call in source.calls(r"([\w.]+\.)?init_process_group|[\w.]+\.setup_distributed"):
        yield source.with_lines(source.statement(call), before=['_os.environ["MASTER_PORT"] = "29533"'])


def own_folder(source: Source) -> Iterator[Mutation]:
    """Each rank makes an output folder of its own, named by its process."""
    for call in source.calls(r"os\.makedirs|os\.mkdir"):
        if call.args and not RANK_NAMES.search(source.segment(source.parents[source.statement(call)])[:80]):
            yield source.replaced(call.args[0], f'{source.segment(call.args[0])} + f"_{{_os.getpid()}}"')


def _guards(source: Source) -> Iterator[ast.If]:
    for statement in source.of(ast.If):
        test = source.segment(statement.test)
        if RANK_NAMES.search(test) and not statement.orelse and len(test) < 60:
            yield statement


OPERATORS = {
    saved_on_every_rank: ("RF501", "RF502", "RF505"),
    logged_on_every_rank: ("RF505", "RF501", "RF504"),
    wrapper_saved: ("RF502",),
    loaded_without_device: ("RF503",),
    axis_grows_by_ranks: ("RF506",),
    port_in_the_script: ("RF602",),
    own_folder: ("RF509", "RF504", "RF501"),
}
