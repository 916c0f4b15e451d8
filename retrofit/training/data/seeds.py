"""Random streams of a script: their seeds, and what is drawn from them before."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import partial

from retrofit.analysis.flow.main_guard import is_under_main_of_another
from retrofit.analysis.flow.operands import inputs
from retrofit.analysis.flow.reachability import calls_named, calls_within
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.flow.stored import set_on_same
from retrofit.analysis.memory import answered_once
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, own_nodes, place_of
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Result
from retrofit.training.torch_api.data import RANDOM_SPLITS
from retrofit.training.torch_api.randomness import (
    DRAWS,
    LIBRARY_DRAWS,
    LIBRARY_METHODS,
    NUMPY,
    SEED_OF,
    SEEDS_OF_PROCESS,
    SHUFFLED_FOLDS,
    SPLITTERS,
    STATES,
    TORCH,
)
from retrofit.training.torch_api.runtime import FROM_MAIN

from ..launch.arguments import default_of_option
from ..loops import Path


def is_drawn(analysis: Analysis, seed: ast.Call, scope: Scope, shared: bool = False) -> bool:
    """Return whether a seed is another one in each process: `args.seed = random.randint(1, 100)`, `time.time()`.

    `shared`: all draw the same numbers, so that only the clock and the like tell them apart.
    """
    given = [*seed.args[:1], *(keyword.value for keyword in seed.keywords if keyword.arg in ("seed", "x", "a"))]
    starts = [Origin(part, scope) for part in given]
    made = origins(analysis, starts, partial(_made_from, analysis))
    calls = [(origin.node, origin.scope) for origin in made if isinstance(origin.node, ast.Call)]
    own = [place for place in calls if not shared and _stream(analysis, *place)]
    return bool(own) or any(analysis.called(*place) & SEEDS_OF_PROCESS for place in calls)


def _made_from(analysis: Analysis, origin: Origin) -> Iterator[Origin]:
    """Yield what a value is computed from, nothing for one that is rank 0's."""
    node = origin.node
    if isinstance(node, ast.Call) and analysis.called(node, origin.scope) & FROM_MAIN:
        return
    yield from inputs(analysis, origin)
    if isinstance(node, ast.Attribute):
        default = default_of_option(analysis, node, origin.scope)
        places = [*set_on_same(analysis, node, origin.scope), *([default] if default else [])]
        yield from (Origin(*place) for place in places)


def drawn_unseeded(analysis: Analysis, paths: list[Path], in_loops: frozenset[ast.AST]) -> Iterator[ast.Call]:
    """Yield what is drawn before the training, or for its outermost loop, from streams that nothing seeds before.

    Drawn by the functions around the training, or by those that they call: `files = shuffled(folder)`, `Pairs(folder)`.
    """
    seeds = {seed: calls_named(analysis, {seed}) for seed in SEED_OF.values()}
    for path in paths:
        for index, frame in enumerate(path.frames):
            inner = {later.scope for later in path.frames[:index]}  # what they seed comes too late
            first = {part for loop in frame.loops[-1:] if isinstance(loop, ast.For) for part in walk(loop.iter)}
            for node in own_nodes(frame.scope.node):
                is_later = node in in_loops and node not in first
                if not isinstance(node, ast.Call) or is_later or node.lineno > frame.node.lineno:  # type: ignore[attr-defined]
                    continue
                run = [(node, frame.scope)] if node is frame.node else calls_within(analysis, node, frame.scope)
                for call, scope in run:
                    seed = "" if scope in inner else _stream(analysis, call, scope)
                    if seed and not any(_is_before(c, s, node, frame.scope, inner) for c, s in seeds[seed]):
                        yield call


def drawn_early(analysis: Analysis, modules: Iterable[Scope]) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the calls of modules that draw while they are imported, from streams that nothing seeds before."""
    seeds = {seed: calls_named(analysis, {seed}) for seed in SEED_OF.values()}
    entry = analysis.module_scopes[analysis.modules.entry]
    for module in modules:
        for node in own_nodes(module.node).of(ast.Call):
            if is_under_main_of_another(analysis, module, node):
                continue
            drawn = {_stream(analysis, call, scope) for call, scope in calls_within(analysis, node, module)} - {""}
            if any(not any(_is_at_import(c, s, node, module, entry) for c, s in seeds[seed]) for seed in drawn):
                yield node, module


def _is_at_import(seed: ast.Call, where: Scope, node: ast.Call, module: Scope, entry: Scope) -> bool:
    """Return whether a seed may be set before a module draws: in the module, or in the script between its imports."""
    if where is module:
        return place_of(seed) < place_of(node)
    if where is not entry:
        return where.is_function
    imports = own_nodes(entry.node).of(ast.Import, ast.ImportFrom)
    return any(place_of(seed) < place_of(part) for part in imports)


def draws(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    """Return whether a call draws from a stream that the whole script shares."""
    return bool(_stream(analysis, call, scope))


def _is_before(seed: ast.Call, where: Scope, draw: ast.Call, scope: Scope, inner: set[Scope]) -> bool:
    return where not in inner and (where is not scope or place_of(seed) < place_of(draw))


@answered_once
def _stream(analysis: Analysis, call: ast.Call, scope: Scope) -> str:
    """Return what seeds the common stream that a call draws from, "" for a call that draws from none."""
    if any(keyword.arg == "generator" for keyword in call.keywords):
        return ""
    names = analysis.called(call, scope)
    if names & RANDOM_SPLITS and len(call.args) < 3:  # the third one is a generator
        return SEED_OF[TORCH]
    for name in names:
        if name in DRAWS:
            return SEED_OF[name.rpartition(".")[0]]
    return SEED_OF[NUMPY] if _is_drawn_by_library(analysis, call, scope, names) else ""


def _is_drawn_by_library(analysis: Analysis, call: ast.Call, scope: Scope, names: Iterable[str]) -> bool:
    """Return whether a function of a library draws from numpy's stream: train_test_split(files) without a state.

    Of an object that makes folds its method does: ShuffleSplit(5).split(files).
    """
    if isinstance(call.func, ast.Attribute) and call.func.attr == "split":
        made = (value for value in analysis.evaluate(call.func.value, scope) if isinstance(value, Result))
        return any(_is_unseeded(value.call, {value.builder} & (SPLITTERS | SHUFFLED_FOLDS)) for value in made)
    if isinstance(call.func, ast.Attribute) and call.func.attr == "sample" and "frac" in _given(call):
        return _is_unseeded(call, {"pandas.sample"})  # rows of a table, whoever made it
    of_methods = {
        name
        for name in names
        for of, method in LIBRARY_METHODS.items()
        if name.startswith(of) and name.endswith(f".{method}")
    }
    return _is_unseeded(call, set(names) & LIBRARY_DRAWS | of_methods)


def _is_unseeded(call: ast.Call, names: set[str]) -> bool:
    """Return whether a call, of one of the names, is given no state, and is to draw."""
    given = _given(call)
    if not names or any(given.get(state) is not None for state in STATES) or given.get("shuffle") is False:
        return False
    return not names <= SHUFFLED_FOLDS or given.get("shuffle") is not None


def _given(call: ast.Call) -> dict[str | None, object]:
    return {keyword.arg: getattr(keyword.value, "value", keyword.value) for keyword in call.keywords}
