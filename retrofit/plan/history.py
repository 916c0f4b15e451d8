"""Predictions and what was measured afterwards, kept on this machine; they correct later predictions."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

VARIABLE = "RETROFIT_PLAN_HISTORY"  # a file; by default in the user's cache folder
MOST = 500  # entries that are kept


def history_file() -> Path:
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "retrofit" / "plan.json"


def factors(script: Path, gpus: int, link: str) -> dict[str, float]:
    """Return for each strategy by what predictions of this script were off: measured over predicted, median.

    Only those for as many GPUs and the same link: others are off for other reasons.
    """
    found: dict[str, list[float]] = {}
    for entry in _entries():
        if (entry["script"], entry["gpus"], entry["link"]) == (str(script), gpus, link):
            found.setdefault(entry["strategy"], []).append(entry["measured_s"] / entry["predicted_s"])
    return {strategy: median(ratios) for strategy, ratios in found.items()}


def remember(script: Path, strategy: str, gpus: int, link: str, predicted: float, measured: float) -> Path:
    """Add a pair, `predicted` without a correction, and return the file. Raises OSError."""
    path = history_file()
    entry = {
        "script": str(script), "strategy": strategy, "gpus": gpus, "link": link, "predicted_s": predicted,
        "measured_s": measured, "at": time.strftime("%Y-%m-%d %H:%M"),
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps([*_entries(), entry][-MOST:], indent=1) + "\n", encoding="utf-8")
    os.replace(unfinished, path)
    return path


def _entries() -> list[dict[str, Any]]:
    """Return what is kept; nothing of a file that cannot be read."""
    try:
        entries = json.loads(history_file().read_text(encoding="utf-8"))
        return [one for one in entries if one["predicted_s"] > 0 and one["measured_s"] > 0 and "link" in one]
    except (OSError, ValueError, KeyError, TypeError):
        return []
