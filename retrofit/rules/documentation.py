"""The text of a rule's page, for the terminal and for docs/rules.md."""

from __future__ import annotations

from .catalog import CATALOG, DISTRIBUTED, SINGLE, TRACED
from .refusals.kinds import kinds_of
from .registry import RULES

FOUND_IN = {
    SINGLE: "`check`; `convert` edits it or refuses the script",
    DISTRIBUTED: "`check`, in scripts that are distributed already",
    TRACED: "`verify`, in what runs do",
}

SUBJECTS = {  # by the first digit of a code
    "0": "The script itself",
    "1": "Data",
    "2": "Model",
    "3": "Loss and learning rate",
    "4": "Evaluation and collective calls",
    "5": "Files and logs",
    "6": "Launch and devices",
}


def explain(code: str) -> str:
    """Return a rule's page: why, who finds it, an example that is found and one that is not, what to do, sources."""
    rule = CATALOG[code]
    parts = [f"## {code} {rule.name}", rule.why, f"Found by {FOUND_IN[rule.found_in]}."]
    if code in RULES:
        parts += [f"Found in:\n\n```python\n{RULES[code].INVALID[0]}```"]
        parts += [f"Not in:\n\n```python\n{RULES[code].VALID[0]}```"]
    parts += [f"What to do: {rule.remedy}"]
    if rule.in_torch != rule.remedy:
        parts += [f"In plain torch: {rule.in_torch}"]
    parts += [_refusals(code)] if kinds_of(code) else []
    parts += ["See also: " + ", ".join(rule.references)] if rule.references else []
    return "\n\n".join(parts) + "\n"


def _refusals(code: str) -> str:
    """Return the kinds of scripts that `convert` refuses by this rule: why, and what to do."""
    lines = ["Refused by `convert`:", ""]
    for kind in kinds_of(code):
        examples = ", ".join(f"[{name}](refusals.md#{name})" for name in kind.examples)
        at_run_time = " Where the training can do without it, it is an error at run time instead." * kind.is_local
        assumed = f" `--prove` converts it under the assumption that {kind.assumption}." if kind.assumption else ""
        shown = f" Examples: {examples}." if examples else ""
        lines.append(f"- `{kind.name}`: {kind.why} {kind.remedy}{at_run_time}{assumed}{shown}")
    return "\n".join(lines)


def page() -> str:
    """Return docs/rules.md: a table of all rules, then the page of each."""
    head = "# Rules\n\nWritten by `python docs/make_rules.py` from `retrofit/rules/`. The examples are shortened.\n\n"
    parts = []
    for digit, subject in SUBJECTS.items():
        rows = [f"[{code}](#{_anchor(code)}) {CATALOG[code].name}" for code in sorted(CATALOG) if code[2] == digit]
        parts.append(f"- {subject}: {', '.join(rows)}\n")
    return head + "".join(parts) + "\n" + "\n".join(explain(code) for code in sorted(CATALOG))


def _anchor(code: str) -> str:
    return f"{code}-{CATALOG[code].name}".lower()
