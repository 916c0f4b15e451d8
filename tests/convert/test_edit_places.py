"""Edits of several rules at one place, in every layout: they do not get in each other's way, and the rest stays."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest
from convert.conversion import converted
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retrofit.analysis.edits import INDENT, apply_edits, insert_after, insert_before, put_under, surround
from retrofit.analysis.files.source import Source, parse_source
from retrofit.convert.plan import Conversion, plan_conversion
from retrofit.training import read_project

IMPORTS = [
    "import os",
    "import torch",
    "from torch.utils.data import DataLoader, TensorDataset",
    "from torch import nn",
]
TRACKER = [
    ["import wandb"],
    ["import wandb  # the tracker"],
    ["try:", "    import wandb", "except ImportError:", "    wandb = None"],
    ["if True: import wandb"],
    ["import sys; import wandb"],
    ["import wandb; import sys"],
    ["from torch.utils.tensorboard import SummaryWriter", "import wandb"],
]
# What is done before the training: several rules change each of them, some at the very place of an import.
FIRST = [
    "wandb.init(project='a')",
    "print('start')",
    "os.makedirs('out', exist_ok=True)",
    "torch.save({}, 'a.pt')",
    "run = wandb.init(project='a')",
    "file = open('log.txt', 'w')",
    "'a string'",
    "wandb.log({'a': 1})",
]
AFTER_STEP = [
    "wandb.log({'loss': loss.item()})",
    "print(loss.item())",
    "total += loss.item()",
    "torch.save(model.state_dict(), 'b.pt')",
    "os.makedirs('more', exist_ok=True)",
    "total = total + 1",
    "wandb.log({\n    'loss': loss.item(),  # of the step\n})",
    "wandb.log({'text': '''\n  loss ''' + str(loss.item())})",
]
HEADERS = [
    "",
    "if step % 2:",
    "with torch.no_grad():",
    "if step == 1:\n    pass\nelif step == 2:",
    "try:",
    "for _ in range(2):",
]
COMMENTS = ["", "# a comment", "\n# above\n# it"]


@st.composite
def joined(draw: st.DrawFn, statements: list[str], least: int = 1) -> list[str]:
    """Return lines of some of the statements: on lines of their own, or with semicolons, with comments."""
    chosen = draw(st.lists(st.sampled_from(statements), min_size=least, max_size=4))
    lines: list[str] = []
    for statement in chosen:
        how = draw(st.sampled_from(["line", "line", "semicolon", "comment", "blank"]))
        if how == "semicolon" and lines and "#" not in lines[-1] and not lines[-1].startswith("@"):
            lines[-1] += f"; {statement}"
        else:
            comment = draw(st.sampled_from(COMMENTS)) if how == "comment" else ""
            lines += [*comment.splitlines(), *([""] if how == "blank" else []), statement]
    if draw(st.booleans()) and lines and "\n" not in lines[-1]:
        lines[-1] += draw(st.sampled_from([";", "  # at the end", ";  # both"]))
    return "\n".join(lines).split("\n")


@st.composite
def under_headers(draw: st.DrawFn, lines: list[str]) -> list[str]:
    header = draw(st.sampled_from(HEADERS))
    if not header:
        return lines
    *before, last = header.split("\n")
    is_one = len(lines) == 1 and not lines[0].startswith("#") and lines[0].strip()
    body = [f"{last} {lines[0]}"] if is_one and draw(st.booleans()) else [last, *nested(lines)]
    if not any(line.strip() and not line.strip().startswith("#") for line in lines):
        body.append("    pass")
    return [*before, *body, *(["finally:", "    pass"] if last == "try:" else [])]


def nested(lines: list[str], step: str = "    ") -> list[str]:
    inside = False
    result = []
    for line in lines:
        result.append(line if inside or not line else step + line)
        inside ^= line.count("'''") % 2 == 1
    return result


@st.composite
def layouts(draw: st.DrawFn) -> bytes:
    head = draw(st.sampled_from([[], ['"""What it does."""'], ["#!/usr/bin/env python", "# licence"]]))
    future = draw(st.sampled_from([[], ["from __future__ import annotations"]]))
    imports = draw(st.permutations([*IMPORTS]))
    tracker = draw(st.sampled_from(TRACKER))
    start = draw(joined(FIRST, 0))
    own = ["torch.manual_seed(0)", "data = TensorDataset(torch.randn(8, 3), torch.randn(8, 1))"]
    made = [
        "loader = DataLoader(data, 4, shuffle=True)",
        "model = nn.Linear(3, 1)",
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)",
        "total = 0",
    ]
    steps = ["optimizer.zero_grad()", "loss = (model(x) - y).pow(2).mean()", "loss.backward()", "optimizer.step()"]
    after = [line for _ in range(draw(st.integers(0, 3))) for line in draw(under_headers(draw(joined(AFTER_STEP))))]
    loop = ["for step, (x, y) in enumerate(loader):", *nested([*steps, *after])]
    rest = [*made, *loop]
    shape = draw(st.sampled_from(["module", "function", "guard"]))
    if shape == "function":
        text = draw(st.sampled_from([[], ['    """Train."""']]))
        rest = ["def main():", *text, *nested(rest), "", draw(st.sampled_from(["main()", "if True: main()"]))]
        rest = rest if draw(st.booleans()) else ["@torch.enable_grad()", *rest]
    elif shape == "guard":
        rest = ["if __name__ == '__main__':", *nested(rest)]
    lines = [*head, *future, *imports, *tracker, *start, *own, *rest]
    indent, newline = draw(st.sampled_from(["    ", "  ", "\t"])), draw(st.sampled_from(["\n", "\r\n", "\r"]))
    lines = [re.sub(r"^(?:    )+", lambda m: indent * (len(m[0]) // 4), line) for line in lines]
    return (newline.join(lines) + newline * draw(st.booleans())).encode()


def is_python(data: bytes) -> bool:
    try:
        compile(data, "train.py", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def changes_nothing_else(result: Conversion) -> None:
    """Check that what no edit touches is as it was, byte for byte, and that new lines are written like the others."""
    (file,) = result.files
    source, position = file.source, 0
    edits = [edit for finding in result.findings for edit in finding.edits]
    touched = {
        number for e in edits for number in range(source.line_of(e.start), source.line_of(max(e.start, e.end)) + 1)
    }
    after = file.text
    for number, line in enumerate(re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+$", source.text), 1):
        if number not in touched and line.strip():
            found = after.find(line.rstrip("\r\n"), position)
            assert found >= 0, line
            position = found
    assert set(re.findall(r"\r\n|\r|\n", after)) <= {source.newline}


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(layouts())
def test_every_layout_is_converted(data: bytes) -> None:
    if not is_python(data):
        return
    with tempfile.TemporaryDirectory() as name:
        script = Path(name) / "train.py"
        script.write_bytes(data)
        result = plan_conversion(read_project(script))
        if result.refusals:
            return
        changes_nothing_else(result)
        script.write_bytes(result.files[0].data)
        assert plan_conversion(read_project(script)).files == []


def test_an_import_right_before_a_change_is_kept(tmp_path: Path) -> None:
    script = (
        "import torch\nfrom torch.utils.data import DataLoader\nimport wandb\nwandb.init(project='a')\nprint('start')\n"
        "loader = DataLoader(torch.randn(8, 3), 4, shuffle=True)\nmodel = torch.nn.Linear(3, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\nfor x in loader:\n    optimizer.zero_grad()\n"
        "    model(x).mean().backward()\n    optimizer.step()\n"
    )
    lines = converted(tmp_path, script)
    assert lines[2] == "import wandb" and "import multigpu as rd" in lines[3:5]
    assert "from multigpu import print_main as print" in lines[3:5]


def source_of(text: str) -> Source:
    return parse_source(text.encode(), Path("train.py"), "train.py")


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_lines_for_a_block_are_inserted_under_its_header(newline: str) -> None:
    source = source_of("a = 1\nb = 2\n\nc = 3\nd = 4\n".replace("\n", newline))
    a, b, c, _ = source.tree.body
    edits = [
        insert_after(source, b, ["after_b"]),
        *put_under(source, [b, c], "with outer:"),
        insert_before(source, c, ["before_c"]),
        insert_before(source, b, ["before_b"]),
        insert_after(source, a, ["after_a"]),
        insert_after(source, c, ["after_c"]),
        *put_under(source, [c], "with inner:"),
    ]
    lines = [
        "a = 1", "after_a", "before_b", "with outer:", "    b = 2", "    after_b", "",
        "    before_c", "    with inner:",
        "        c = 3", "after_c", "d = 4", "",
    ]  # fmt: skip
    assert apply_edits(source, edits).split(newline) == lines
    assert apply_edits(source, [*reversed(edits)]).split(newline) == lines
    assert sum(edit.order == INDENT for edit in edits) == 4


def test_lines_after_an_inner_statement_come_before_those_after_the_outer_one() -> None:
    source = source_of("for i in x:\n    for j in i:\n        a = j\nmain()")
    outer = source.tree.body[0]
    (inner,) = outer.body
    edits = [insert_after(source, outer, ["one"]), insert_after(source, inner, ["two"])]
    edits += [insert_after(source, inner.body[0], ["three"]), insert_before(source, source.tree.body[1], ["four"])]
    edits += [
        insert_after(source, source.tree.body[1], ["end"]),
        *surround(source, source.tree.body[1].value, "f(", ")"),
    ]
    expected = "for i in x:\n    for j in i:\n        a = j\n        three\n    two\none\nfour\nf(main())\nend"
    assert apply_edits(source, edits) == apply_edits(source, edits[::-1]) == expected
