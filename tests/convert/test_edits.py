"""Edits change what they are to change and nothing else: newlines, tabs, encodings and strings stay as they are."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrofit.analysis.edits import (
    Edit,
    EditConflict,
    add_argument,
    add_condition,
    apply_edits,
    delete_statement,
    indent_step,
    insert_after,
    insert_before,
    put_under,
    replace,
    surround,
)
from retrofit.analysis.files.source import SourceError, parse_source, read_source


def source_of(text, encoding="utf-8"):
    return parse_source(text if isinstance(text, bytes) else text.encode(encoding), Path("train.py"), "train.py")


def first(source, kind):
    return next(node for node in ast.walk(source.tree) if isinstance(node, kind))


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("indent", ["    ", "  ", "\t"])
def test_inserted_lines_follow_the_file(newline, indent):
    source = source_of(f"def f():{newline}{indent}x = 1  # one{newline}{indent}return x{newline}")
    statement = first(source, ast.Assign)
    text = apply_edits(
        source, [insert_after(source, statement, ["y = x"]), insert_before(source, statement, ["w = 0"])]
    )
    lines = ["def f():", f"{indent}w = 0", f"{indent}x = 1  # one", f"{indent}y = x", f"{indent}return x", ""]
    assert text == newline.join(lines)
    assert indent_step(source) == indent


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = 1; x = f(1); b = 2\n", "a = 1; w = 0; x = g(f(1)); y = x; b = 2\n"),
        ("if a: x = f(1)\n", "if a: w = 0; x = g(f(1)); y = x\n"),
        ("if a: pass\nelse: x = f(1);  # one\n", "if a: pass\nelse: w = 0; x = g(f(1)); y = x;  # one\n"),
        ("a = 1; x = f(1)\n", "a = 1; w = 0; x = g(f(1))\ny = x\n"),
        ('a = """\n"""; x = f(1)\n', 'a = """\n"""; w = 0; x = g(f(1))\ny = x\n'),
        ("x = f(1); b = 2\n", "w = 0\nx = g(f(1)); y = x; b = 2\n"),
        ("x = f(1);\n", "w = 0\nx = g(f(1));\ny = x\n"),
    ],
)
def test_inserted_lines_stay_with_a_statement_that_shares_its_line(text, expected):
    source = source_of(text)
    statement = next(node for node in source.nodes if isinstance(node, ast.Assign) and node.targets[0].id == "x")
    edits = [insert_after(source, statement, ["y = x"]), insert_before(source, statement, ["w = 0"])]
    assert apply_edits(source, [*edits, *surround(source, statement.value, "g(", ")")]) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("for e in a:\n    # one\n    # two\n    x = 1\n", "for e in a:\n    w = 0\n    # one\n    # two\n    x = 1\n"),
        ("a = 1\n# one\n\n# two\nx = 1\n", "a = 1\n# one\n\nw = 0\n# two\nx = 1\n"),
        ("def f():\n    a = 1\n  # other\n    x = 1\n", "def f():\n    a = 1\n  # other\n    w = 0\n    x = 1\n"),
        ('a = """\n# text"""\nx = 1\n', 'a = """\n# text"""\nw = 0\nx = 1\n'),
        ("#!/usr/bin/env python\n# licence\nx = 1\n", "#!/usr/bin/env python\n# licence\nw = 0\nx = 1\n"),
        ("import a\r\n# one\r\nx = 1\r\n", "import a\r\nw = 0\r\n# one\r\nx = 1\r\n"),
    ],
)
def test_lines_before_a_statement_stay_above_its_comment(text, expected):
    source = source_of(text)
    statement = next(node for node in source.nodes if isinstance(node, ast.Assign) and node.targets[0].id == "x")
    assert apply_edits(source, [insert_before(source, statement, ["w = 0"])]) == expected


def test_statements_are_indented_under_a_header_and_strings_are_unchanged():
    source = source_of('if a:\n    save("""one\n  two\n""", b"x"\n         b"y")\n\n    load()\n')
    text = apply_edits(source, put_under(source, first(source, ast.If).body, "if main():"))
    assert text == (
        'if a:\n    if main():\n        save("""one\n  two\n""", b"x"\n             b"y")\n\n        load()\n'
    )
    strings = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
    assert "one\n  two\n" in strings and b"xy" in strings


def test_a_statement_that_shares_its_line_is_not_moved():
    source = source_of("a = 1; save(a)\n")
    with pytest.raises(EditConflict, match=r"train.py:1: several statements on one line; write each on its own"):
        put_under(source, [source.tree.body[1]], "if main():")


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("a", "main() and a"),
        ("a and b", "main() and a and b"),
        ("a or b", "main() and (a or b)"),
        ("a if b else c", "main() and (a if b else c)"),
        ("not a", "main() and not a"),
    ],
)
def test_a_condition_is_added_before_a_test(test, expected):
    source = source_of(f"if {test}:\n    pass\n")
    assert apply_edits(source, add_condition(source, source.tree.body[0], "main()")) == f"if {expected}:\n    pass\n"


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("f()", "f(z=1)"),
        ("f(a, b=2)", "f(a, b=2, z=1)"),
        ("f(a,\n  b=2,\n)", "f(a,\n  b=2, z=1,\n)"),
        ("f((a))", "f((a), z=1)"),
        ("f(*a, **b)", "f(*a, **b, z=1)"),
    ],
)
def test_an_argument_is_added_after_the_last_one(call, expected):
    source = source_of(f"{call}\n")
    assert apply_edits(source, add_argument(source, first(source, ast.Call), "z=1")) == f"{expected}\n"


def test_columns_count_characters_where_the_tree_counts_bytes():
    source = source_of("größe = f('ä', x)  # ö\n")
    call = first(source, ast.Call)
    assert source.segment(call) == "f('ä', x)" and str(source.place(call)) == "train.py:1:9"
    assert apply_edits(source, surround(source, call.args[1], "g(", ")")) == "größe = f('ä', g(x))  # ö\n"


def test_edits_that_overlap_are_refused_and_equal_ones_count_once():
    source = source_of("x = f(1)\n")
    call = first(source, ast.Call)
    assert apply_edits(source, [replace(source, call, "2"), replace(source, call, "2")]) == "x = 2\n"
    with pytest.raises(EditConflict, match="two changes want the same text"):
        apply_edits(source, [replace(source, call, "2"), replace(source, call.args[0], "3")])


def test_removing_a_statement_removes_its_line():
    source = source_of("a = 1\nb = 2  # two\nc = 3")
    assert apply_edits(source, [delete_statement(source, source.tree.body[1])]) == "a = 1\nc = 3"
    assert apply_edits(source, [insert_after(source, source.tree.body[2], ["d = 4"])]).endswith("c = 3\nd = 4")


@given(st.text(alphabet="ab\r\n\t\f é\u2028", max_size=40), st.data())
def test_text_without_an_edit_is_unchanged(text, data):
    source = source_of("x = 1\n")
    source.text = text
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    assert apply_edits(source, [Edit(source, start, end, "NEW")]) == text[:start] + "NEW" + text[end:]


# ---- files


@pytest.mark.parametrize(
    ("data", "encoding", "has_bom"),
    [
        (b"x = 'plain'\n", "utf-8", False),
        (b"\xef\xbb\xbfx = 1\n", "utf-8-sig", True),
        ("# -*- coding: latin-1 -*-\nx = 'ü'\n".encode("latin-1"), "iso-8859-1", False),
    ],
)
def test_a_file_is_read_in_its_own_encoding(data, encoding, has_bom):
    source = source_of(data)
    assert (source.encoding, source.has_bom) == (encoding, has_bom)
    assert not source.text.startswith("\ufeff")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"print 'hello'\n", r"train.py:1: Python 2 syntax .*convert the file with 2to3 first"),
        (b"x = 1\nx.cuda(async=True)\n", r"train.py:2: `async` is a keyword since Python 3.7"),
        (b"def f(:\n", r"train.py:1: invalid syntax .*the file must run on this Python first"),
        (b"x = '\xff'\n", r"train.py: not text in its declared encoding .*save it as UTF-8"),
        (b"x = 1\x00\n", r"train.py:1: invalid syntax"),
    ],
)
def test_a_file_that_is_not_python_is_reported_with_the_reason(data, message):
    with pytest.raises(SourceError, match=message):
        source_of(data)


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(SourceError, match=r"gone.py: cannot be read \(No such file or directory\)"):
        read_source(tmp_path / "gone.py", "gone.py")


@pytest.mark.parametrize("style", ["\t", "  "])
def test_a_header_keeps_the_white_space_of_its_own_block_in_a_file_of_both(style):
    other = "  " if style == "\t" else "\t"
    text = f"def f():\n{other}return 1\n\n\ndef g():\n{style}save()\n{style}if x:\n{style}{style}save()\n"
    source = source_of(text)
    body = source.tree.body[1].body
    for statements in ([body[0]], [body[1].body[0]], body, [source.tree.body[1]]):
        ast.parse(apply_edits(source, put_under(source, statements, "if main():")))
