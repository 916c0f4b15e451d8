"""Write docs/api.md from the runtime's docstrings: python docs/make_api.py"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import retrofit.distributed as rd  # noqa: E402

HEAD = """\
# The runtime's functions

Written by `python docs/make_api.py` from the docstrings of `retrofit/distributed/`; `help(rd.distribute_model)` shows
a whole one. Without a launcher every function is the identity. "Every rank" means: all ranks call it or none, or the
job waits until it is told which rank is missing.
"""


def page() -> str:
    """Return docs/api.md: what is at the top of the runtime, then its modules."""
    parts = [HEAD, "## `rd`, for most scripts\n\n" + _table("rd", rd, rd.__all__)]
    modules = [getattr(rd, name) for name in dir(rd)]
    for module in modules:
        if isinstance(module, ModuleType) and hasattr(module, "__all__"):
            name = module.__name__.rpartition(".")[2]
            own = [public for public in module.__all__ if public not in rd.__all__]
            first = (module.__doc__ or "").split("\n\n")[0].replace("\n", " ").strip()
            parts.append(f"## `rd.{name}`\n\n{first}\n\n" + _table(f"rd.{name}", module, own))
    return "\n".join(parts)


def _table(prefix: str, module: ModuleType, names: list[str]) -> str:
    rows = ["| Name | What it does | Ranks that call it |", "|---|---|---|"]
    for name in names:
        thing = getattr(module, name)
        text = " ".join((inspect.getdoc(thing) or "").split())
        first = re.split(r"(?<=[a-z)`'\"])\. ", text + " ", maxsplit=1)[0].strip().rstrip(".:")
        ranks = "every rank" if "ollective: every rank" in text else "any"
        rows.append(f"| `{prefix}.{name}{_arguments(thing)}` | {first.replace('|', '/')} | {ranks} |")
    return "\n".join(rows) + "\n"


def _arguments(thing: Any) -> str:
    """Return the names of the arguments, those with a default with "=..."."""
    if inspect.isclass(thing) and thing.__init__ is object.__init__:
        return ""
    shown = []
    for parameter in inspect.signature(thing.__init__ if inspect.isclass(thing) else thing).parameters.values():
        if parameter.name in ("self", "environ"):
            continue
        mark = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = "" if mark or parameter.default is parameter.empty else "=..."
        shown.append(f"{mark}{parameter.name}{default}")
    return f"({', '.join(shown)})"


if __name__ == "__main__":
    (ROOT / "docs" / "api.md").write_text(page(), encoding="utf-8")
