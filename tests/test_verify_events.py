"""The schema of a trace: what is written is read again, and each field says what it means."""

from __future__ import annotations

import ast
import dataclasses
import io
import tokenize
from pathlib import Path

import pytest

from retrofit.verify.evidence import read_events
from retrofit.verify.trace import events as schema
from retrofit.verify.trace.events import (
    KINDS,
    BackwardCall,
    OutputLine,
    ParserOption,
    ParserUse,
    ProcessExit,
    ScriptError,
    TraceError,
    event_of,
    line_of,
    line_start,
)

NESTED = [
    ProcessExit(1, ScriptError("ValueError", "no such thing\nat all", "train.py:3 in main", "Traceback ...")),
    TraceError(ScriptError("KeyError", "'x'", "data/loaders.py:12 in _begin", "Traceback ...")),
    ParserUse([ParserOption(["-b", "--batchsize"], "batchsize", True, "", None)], {"--local_rank": False}, True),
]


def test_an_event_is_read_as_it_was_written():
    plain = [kind(*range(len(dataclasses.fields(kind)))) for kind in KINDS.values() if kind not in map(type, NESTED)]
    assert {type(event) for event in plain + NESTED} == set(KINDS.values())
    for event in plain + NESTED:
        line = line_of(event, 1.25, 7)
        assert line.startswith(line_start(type(event))) and line.endswith("}\n") and line.count("\n") == 1
        assert event_of(line) == event
        assert (event_of(line).seconds, event_of(line).step) == (1.25, 7)


def test_numbers_that_are_not_finite_and_other_alphabets_survive():
    assert str(event_of(line_of(BackwardCall(float("nan")), 0.0, 0)).loss) == "nan"
    assert (
        event_of(line_of(OutputLine("Verlust für\u2028 \udcff", "stdout"), 0.0, 0)).text == "Verlust für\u2028 \udcff"
    )


@pytest.mark.parametrize(
    "line",
    [
        "",
        "5",
        "[]",
        "{}",
        '{"event": "BackwardCall", "seconds": 0.1',
        '{"event": "BackwardCall", "seconds": 0.1, "step": 0}',
        '{"event": "BackwardCall", "seconds": 0.1, "step": 0, "loss": 1.0, "more": 2}',
        '{"event": "ParserUse", "seconds": 0.1, "step": 0}',
        '{"event": "ParserUse", "seconds": 0.1, "step": 0, "options": [{"flags": []}]}',
    ],
)
def test_a_line_that_is_not_an_event_is_an_error_unless_it_is_the_last(tmp_path, line):
    with pytest.raises(ValueError):
        event_of(line)
    good = line_of(BackwardCall(0.5), 0.1, 0)
    path = tmp_path / "rank0.jsonl"
    path.write_text(good + line)
    assert read_events(path) == [BackwardCall(0.5)]
    path.write_text(f"{good}{line}\n{good}")
    with pytest.raises(ValueError, match="line 2 is not an event"):
        read_events(path)


def test_an_unknown_kind_is_left_out(tmp_path):
    path = tmp_path / "rank0.jsonl"
    path.write_text('{"event": "PowerCut", "seconds": 0.1, "step": 0}\n' + line_of(BackwardCall(0.5), 0.1, 0))
    assert read_events(path) == [BackwardCall(0.5)]


def test_every_kind_and_every_field_is_documented():
    names = {"Event", "ScriptError", "ParserOption", *KINDS}
    for path in sorted(Path(schema.__file__).parent.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        commented = {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
        for node in [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]:
            names.remove(node.name)
            assert ast.get_docstring(node), node.name
            for field in node.body:
                if isinstance(field, ast.AnnAssign):
                    assert field.lineno in commented, f"{node.name}.{ast.unparse(field.target)} has no comment"
    assert names == set()
