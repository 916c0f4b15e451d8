"""Whatever parts a training script is made of: only what is to change changes, and the training stays the same."""

from __future__ import annotations

import ast
import difflib
import re
import tempfile
from pathlib import Path

from convert.conversion import add_runtime
from convert.generated_scripts import Script, scripts
from hypothesis import HealthCheck, given, settings
from verify.projects.launch import Launcher

from retrofit.convert.plan import Conversion, plan_conversion
from retrofit.rules.registry import find_all
from retrofit.training import read_project

MANY = settings(derandomize=True, max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
FEW = settings(MANY, max_examples=6)


def planned(script: Script, folder: Path) -> Conversion:
    (folder / "train.py").write_bytes(script.data)
    conversion = plan_conversion(read_project(folder / "train.py"))
    add_runtime(folder)
    assert not conversion.refusals and len(conversion.files) == 1, conversion.refusals
    return conversion


def edited_lines(conversion: Conversion) -> set[int]:
    """Return the numbers, from 0, of the lines that the plan touches."""
    source = conversion.project.entry
    found: set[int] = set()
    for finding in conversion.findings:
        for edit in finding.edits:
            if edit.source is source:
                found |= set(range(source.line_of(edit.start) - 1, source.line_of(max(edit.start, edit.end - 1))))
            else:  # of a later round, in the text that the edits before it have made
                found.add(finding.place.line - 1)
    return found


@MANY
@given(scripts())
def test_only_what_is_planned_changes(script: Script) -> None:
    with tempfile.TemporaryDirectory() as name:
        conversion = planned(script, Path(name))
    before, after = script.data.splitlines(keepends=True), conversion.files[0].data.splitlines(keepends=True)
    compile(conversion.files[0].data, "train.py", "exec", dont_inherit=True)
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    may_change = edited_lines(conversion)
    for kind, first, last, new_first, new_last in matcher.get_opcodes():
        if kind == "equal":
            continue
        lost = set(range(first, last))
        assert lost <= may_change | {len(before) - 1}, b"".join(before[first:last])  # the last may get its newline
        stripped = {line.strip() for line in before[first:last]}
        for line in after[new_first:new_last]:
            assert line.strip() in stripped or b"rd." in line or b"multigpu" in line, line


@MANY
@given(scripts())
def test_added_lines_follow_the_style_of_the_file(script: Script) -> None:
    with tempfile.TemporaryDirectory() as name:
        conversion = planned(script, Path(name))
    text = conversion.files[0].text
    assert text.count("\n") == text.count(script.newline) and ("\r" in text) == ("\r" in script.newline)
    assert text.endswith(("\r", "\n")) == script.ends_with_newline
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt):
            line = text.splitlines()[node.lineno - 1]
            margin = line[: len(line) - len(line.lstrip())]
            assert not margin.replace(script.indent, ""), line


@MANY
@given(scripts())
def test_a_second_conversion_finds_nothing_to_change(script: Script) -> None:
    with tempfile.TemporaryDirectory() as name:
        conversion = planned(script, Path(name))
        Path(name, "train.py").write_bytes(conversion.files[0].data)
        again = read_project(Path(name, "train.py"))
        assert plan_conversion(again).files == []
        left = [f"{finding.code} {finding.place}" for finding in find_all(again)]
        assert left == [], conversion.files[0].text


def test_one_process_is_the_original_bit_for_bit(launcher: Launcher) -> None:
    seen = []

    @FEW
    @given(scripts())
    def run(script: Script) -> None:
        with tempfile.TemporaryDirectory() as name:
            conversion = planned(script, Path(name))
            outputs = []
            for data in (script.data, conversion.files[0].data):
                Path(name, "train.py").write_bytes(data)
                result = launcher.run(name, "train.py", [])
                assert result["statuses"] == [0], result["outputs"][0]
                outputs.append(re.findall(r"loss[^\r\n]*", result["outputs"][0]))  # behind a bar too
            assert outputs[0] == outputs[1] != []
            seen.append(script)

    run()
    assert len(set(seen)) >= 5
