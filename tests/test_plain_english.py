"""The words of the project: the field's terms and plain English, counted over code, messages, pages and scripts.

python tests/test_plain_english.py      every place, by phrase
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
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
ANY_PHRASE = re.compile("|".join(PHRASES), re.IGNORECASE)
# Phrases that are meant: the file, the words around, and the reason.
ALLOWED: tuple[tuple[str, str], ...] = ()
MOST = 0  # places that are left
# The words of a name, and what to write; test files, tests and their cases are names too.
NAMES = {
    **PHRASES,
    r"\b(stands?|standing)\b": "is, appears; a stub",
    r"\b(handed|hands?) out\b": "broadcast, given to every rank",
    r"\bin front\b": "before",
    r"\beverybod(y|ys)\b": "every rank",
    r"\bhomes?\b": "variable",
    r"\bcurved\b": "nonlinear",
}
ANY_NAME = re.compile("|".join(NAMES), re.IGNORECASE)
# Names that mean something else: the name, and what.
ALLOWED_NAMES = {
    "_below_home": "home directories",
    "home": "the home directory, in analysis/files/repository.py",
    "_is_no_sync": "DistributedDataParallel.no_sync",
}
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
            for match in ANY_PHRASE.finditer(line):
                if not any(file == name and words in line for file, words in ALLOWED):
                    found.add((f"{name}:{number}", match.group(), line.strip()))
    return sorted(found)


def test_no_phrase_of_the_table_appears() -> None:
    found = places()
    assert len(found) <= MOST, "\n".join(f"{place}: {phrase!r} in {line}" for place, phrase, line in found[-20:])


def names_in(path: Path) -> Iterator[str]:
    """Yield the names that a file gives: of itself, of functions, classes, arguments, variables and attributes."""
    yield path.stem
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


@cache
def private_words(name: str) -> str:
    """Return the phrase of the table in a name, which is split at underscores and before capitals; "" for none."""
    match = ANY_NAME.search(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).replace("_", " "))
    return match.group() if match else ""


def named_files() -> list[Path]:
    """Return the files whose names are ours: not the projects and scripts that tests convert."""
    of_others = ("projects", "golden", "triples", "by_hand", "single_gpu")
    found = [*(ROOT / "retrofit").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    return sorted(path for path in found if not {*path.relative_to(ROOT).parts} & {*of_others})


def test_no_name_has_a_phrase_of_the_table() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {private_words(name)!r} in {name}"
        for path in named_files()
        for name in {*names_in(path)} - {*ALLOWED_NAMES}
        if private_words(name)
    ]
    assert not found, "\n".join(sorted(found))


def test_no_case_of_a_test_has_a_phrase_of_the_table(request: pytest.FixtureRequest) -> None:
    cases = {re.sub(r"^[^\[]*\[|\]$", "", item.name) for item in request.session.items if "[" in item.name}
    own = [case for case in cases if re.fullmatch(r"[A-Za-z][\w ,'-]*", case)]  # the others are code and messages
    found = [case for case in own if ANY_NAME.search(case)]
    assert not found, "\n".join(sorted(found))


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
