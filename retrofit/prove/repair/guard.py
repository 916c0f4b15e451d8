"""No repair silences a check: what a script prints, saves, logs and evaluates stays, and stays judged."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence

from retrofit.analysis.calls import last_name
from retrofit.verify.verdict import ACCEPTED, FAIL, INTERNAL_ERROR, NOT_APPLICABLE, PASS, Verdict

SPEAKS = {
    *("print", "print_main", "save", "save_checkpoint", "add_scalar", "add_scalars", "log", "log_metrics", "info"),
    *(
        "backward",
        "step",
        "eval",
        "train",
        "evaluate",
        "validate",
        "write",
        "writerow",
        "set_postfix",
        "load_state_dict",
    ),
}


def removes_output(before: ast.Module, after: ast.Module) -> bool:
    """Return whether a changed file prints, saves, logs, trains or evaluates at fewer places than before."""
    old, new = (Counter(_places(tree)) for tree in (before, after))
    return any(new[name] < number for name, number in old.items())


def _places(tree: ast.Module) -> list[str]:
    calls = [last_name(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    loops = [type(node).__name__ for node in ast.walk(tree) if isinstance(node, ast.While)]
    return [name for name in calls if name in SPEAKS] + loops


def is_better(before: Sequence[Verdict], after: Sequence[Verdict], repaired: Sequence[str]) -> bool:
    """Return whether a repair helps: the first of the checks `repaired` passes now, and none of them fails.

    No other fails that did not, but for what a script that ended or hung hid; and all are judged that were.
    """
    old = {verdict.check: verdict for verdict in before}
    new = {verdict.check: verdict for verdict in after}
    if not new or any(verdict.status == INTERNAL_ERROR for verdict in after):
        return False
    for check, verdict in new.items():
        was = old[check].status if check in old else NOT_APPLICABLE
        if verdict.status == FAIL and was not in (FAIL, NOT_APPLICABLE):
            return False
        if verdict.status == FAIL and was == NOT_APPLICABLE and not _was_hidden(old):
            return False
        if verdict.status == NOT_APPLICABLE and was in (PASS, ACCEPTED):
            return False
    first, *others = repaired
    return first in new and new[first].status == PASS and all(c not in new or new[c].status != FAIL for c in others)


def _was_hidden(old: dict[str, Verdict]) -> bool:
    """Return whether the script ended or hung before all was judged: what it hid may show now."""
    return any(old[check].status == FAIL for check in ("completes", "collectives") if check in old)
