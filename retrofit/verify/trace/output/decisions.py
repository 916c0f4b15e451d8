"""Figures by which the script decides about its training, recorded where it does."""

from __future__ import annotations

import ast
import builtins
import functools
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from retrofit.verify.trace.after_import import compile_instead
from retrofit.verify.trace.computation.operators import untraced
from retrofit.verify.trace.events import DecisionInput, Record
from retrofit.verify.trace.runtime import is_in_runtime
from retrofit.verify.trace.settings import PARTS, DecisionTest, TraceSettings

HOOK = "__retrofit_decides__"
CONDITIONS = {
    **dict.fromkeys((ast.If, ast.While, ast.IfExp), "test"),
    **dict.fromkeys((ast.Assign, ast.AugAssign, ast.Return), "value"),
}
MOST_VALUES = 200  # of one decision


def record_decisions(record: Record, settings: TraceSettings, script: str) -> None:
    """Record the figures in each decision of `settings` before it is made, in the script and in what it imports.

    Its condition is compiled as `HOOK(number) or condition`; the hook looks into the frame that calls it, and is false.
    """
    hooks: list[Callable[[FrameType], None]] = []
    places: dict[str, dict[tuple[int, int], int]] = {}  # by file, line and column: the number of the hook
    for path, tests in settings.decisions.items():
        numbers = places[os.path.realpath(os.path.join(settings.project, path))] = {}
        for test in tests:
            numbers[test.line, test.column] = len(hooks)
            hooks.append(_recording(record, path, test))

    def decides(number: int) -> bool:
        hooks[number](sys._getframe(1))
        return False

    def compiled(path: str) -> CodeType:
        tree = ast.parse(Path(path).read_bytes(), path)
        return compile(_hooked(tree, places[os.path.realpath(path)]), path, "exec", dont_inherit=True)

    setattr(builtins, HOOK, decides)
    compile_instead(lambda path: os.path.realpath(path) in places, compiled)
    if os.path.realpath(script) in places:
        _compile_script(script, compiled)


def _compile_script(script: str, compiled: Callable[[str], CodeType]) -> None:
    """Let `runpy` run the changed code of the script, which no import finds."""
    plain = builtins.compile

    @functools.wraps(plain)
    def compile_once(source: Any, filename: Any, mode: str, flags: int = 0, *args: Any, **kwargs: Any) -> Any:
        if filename != script or mode != "exec" or flags & ast.PyCF_ONLY_AST:  # as a tree: parsed, not run
            return plain(source, filename, mode, flags, *args, **kwargs)
        builtins.compile = plain
        return compiled(script)

    builtins.compile = compile_once  # type: ignore[assignment]


def _hooked(tree: ast.Module, numbers: Mapping[tuple[int, int], int]) -> ast.Module:
    """Return the module with a call of the hook before each condition that begins at one of these places."""
    for node in ast.walk(tree):
        field = CONDITIONS.get(type(node))
        condition = getattr(node, field) if field else None
        number = numbers.get((condition.lineno, condition.col_offset)) if isinstance(condition, ast.expr) else None
        if field is None or number is None or condition is None:
            continue
        hook = ast.Call(ast.Name(HOOK, ast.Load()), [ast.Constant(number)], [])
        hooked = ast.BoolOp(ast.Or(), [hook, condition])
        setattr(node, field, ast.copy_location(hooked, condition))
    return ast.fix_missing_locations(tree)


def _recording(record: Record, path: str, test: DecisionTest) -> Callable[[FrameType], None]:
    codes = {name: compile(name, path, "eval") for name in test.names}
    left = MOST_VALUES

    def run(frame: FrameType) -> None:
        nonlocal left
        if left <= 0:
            return
        values: dict[str, float] = {}
        for name, code in codes.items():
            try:
                value = eval(code, frame.f_globals, frame.f_locals)
            except Exception:  # not there yet: the test is `not scores or score > scores[-1]`
                continue
            number = figure(value, test.counts)
            if number is not None:
                values[name] = number
        if values:
            record(DecisionInput(path, test.line, test.text, test.kind, list(values), list(values.values())))
            left -= 1

    return run


def figure(value: Any, counts: bool) -> float | None:
    """Return a value as a number where it is one with decimals, or (`counts`) a whole one; a list as its sum."""
    if isinstance(value, bool):
        return None
    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or value.is_complex() or type(value) not in (torch.Tensor, torch.nn.Parameter):
            return None
        with untraced():
            value = value.item()
        return figure(value, counts)
    if isinstance(value, (list, tuple)):
        numbers = [figure(one, counts) for one in value[:10_000]]
        known = [one for one in numbers if one is not None]
        return sum(known) if known and len(known) == len(numbers) else None
    if isinstance(value, int):
        return float(value) if counts else None
    is_number = isinstance(value, float) or type(value).__name__ in ("float16", "float32", "float64")  # of numpy
    return float(value) if is_number else None


def record_plateau(record: Record, project: str) -> None:
    """Record the figure that each ReduceLROnPlateau is given."""
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
    step = plateau.step
    counts: Counter[tuple[str, int]] = Counter()

    @functools.wraps(step)
    def traced(self: Any, metrics: Any, *args: Any, **kwargs: Any) -> Any:
        place = place_in(project, sys._getframe(1))
        counts[place] += 1
        if counts[place] <= MOST_VALUES:
            number = figure(metrics, counts=True)
            if number is not None:
                record(DecisionInput(*place, f"{type(self).__name__}.step", PARTS, ["metrics"], [number]))
        return step(self, metrics, *args, **kwargs)

    plateau.step = traced  # type: ignore[method-assign]


def place_in(project: str, frame: FrameType | None) -> tuple[str, int]:
    """Return path and line of the innermost frame in the user's own files."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(project + os.sep):
            path = os.path.relpath(frame.f_code.co_filename, project)
            if not is_in_runtime(path, project):
                return path, frame.f_lineno
        frame = frame.f_back
    return "?", 0
