"""The words of the project: the field's terms and plain English, counted over code, messages, pages and scripts.

python tests/test_plain_english.py      every place, by phrase
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# A phrase that is private to this project, and what the field says.
PHRASES = {
    r"\bbehind\b": "after; wrapped by; follows",
    r"\bin front of\b": "before",
    r"\bstands? (in|behind|at|on|for|under|there)\b": "is, appears, follows",
    r"(?<!there )\b(is|are) no (?!longer|more|other|such|better|less|fewer)\w+": "is not a ...",
    r"\bshar(e|es|ed|ing) (it |them )?out\b": "shard, split across ranks",
    r"\bgoes on\b|\bgo on\b|\bwent on\b": "continues",
    r"\bbeside\b": "next to, in addition to",
    r"\balike\b": "the same",
    r"\banew\b": "again",
    r"\bfor ever\b": "forever",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bnobody\b|\bsomebody\b": "no one; a person; or name what it is",
    r"\bas intended\b": "suppresses a finding",
    r"\blives in\b|\bits home\b|(?<!`)\bmakers?\b": "is assigned to; is built by",
    r"\bform a group\b": "a process group is initialized",
    r"\bone process's share\b": "this rank's own",
}
# Phrases that are meant: the file, the words around, and the reason.
ALLOWED: tuple[tuple[str, str], ...] = ()
MOST = 0  # places that are left
FIRST_WORDS = ("Whether ", "What ", "Where ", "Which ", "How ", "When ", "Who ")


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the prose of a file by line: comments, docstrings and messages of Python, all of a page or a script."""
    lines = path.read_text(encoding="utf-8").splitlines()
    if path.suffix != ".py":
        in_code = False
        for number, line in enumerate(lines, 1):
            in_code ^= line.lstrip().startswith("```")
            if not in_code or path.suffix == ".sh":
                yield number, line
        return
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            for offset, line in enumerate(node.value.splitlines()):
                yield node.lineno + offset, line
    for number, line in enumerate(lines, 1):
        found = re.search(r"(?:^|\s)#(?!!)\s?(.*)", line)
        if found:
            yield number, found[1]


def files() -> list[Path]:
    """Return the files whose words are ours: not projects of other people, not what is generated from those."""
    kept = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("scripts/**/*.sh"), *ROOT.glob("*.sh")]
    for folder in ("retrofit", "segmentation", "scripts", "docs", "benchmarks", "examples"):
        kept += (ROOT / folder).rglob("*.py")
    kept += ROOT.glob("*.py")
    return sorted(path for path in kept if path.name not in ("CHANGELOG.md", "api.md", "rules.md", "multigpu.py"))


def places() -> list[tuple[str, str, str]]:
    """Return (place, phrase, line) for every phrase of the table."""
    found = set()
    for path in files():
        name = path.relative_to(ROOT).as_posix()
        if "zh-CN" in name:
            continue
        for number, line in texts(path):
            for phrase in PHRASES:
                for match in re.finditer(phrase, line, re.IGNORECASE):
                    if not any(file == name and words in line for file, words in ALLOWED):
                        found.add((f"{name}:{number}", match.group(), line.strip()))
    return sorted(found)


def test_no_phrase_of_the_table_appears() -> None:
    found = places()
    assert len(found) <= MOST, "\n".join(f"{place}: {phrase!r} in {line}" for place, phrase, line in found[-20:])


@pytest.mark.parametrize(
    "path", sorted((ROOT / "retrofit").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_a_module_opens_with_a_noun_phrase_or_an_imperative(path: Path) -> None:
    first = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    assert not first.startswith(FIRST_WORDS), first.partition("\n")[0]


def main() -> int:
    """Print every place, then the number of places by phrase."""
    found = places()
    for place, phrase, line in found:
        print(f"{place}: {phrase!r} in {line}")
    for phrase, better in PHRASES.items():
        number = sum(bool(re.fullmatch(phrase, match, re.IGNORECASE)) for _, match, _ in found)
        print(f"{number:5} {phrase} -> {better}")
    print(f"{len(found):5} in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
