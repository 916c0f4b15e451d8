"""The text of a rule's page, for the terminal and for docs/rules.md."""

from __future__ import annotations

from . import RULES


def explain(code: str) -> str:
    """Return a rule's page: name, why, an example that is found, the same without the hazard, what to do."""
    rule = RULES[code]
    return (
        f"## {code} {rule.NAME}\n\n{rule.WHY}\n\n"
        f"Found in:\n\n```python\n{rule.BAD}```\n\n"
        f"Not in:\n\n```python\n{rule.GOOD}```\n\n"
        f"What to do: {rule.HELP}\n"
    )


def page() -> str:
    """Return docs/rules.md."""
    head = "# Rules\n\nWritten by `python docs/make_rules.py` from `retrofit/rules/`. The examples are shortened.\n\n"
    return head + "\n".join(explain(code) for code in sorted(RULES))
