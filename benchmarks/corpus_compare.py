"""Compare the logs of two runs of a project: losses, norms, samples, written files, learning rates."""

from __future__ import annotations

from itertools import chain
from typing import Any

Log = dict[int, list[dict[str, Any]]]  # rank -> events, as the recipes and corpus_observer.py write them

TOLERANCE = 1e-6  # of norms and losses over the first steps, in float64
FIRST_STEPS = 3  # deep networks multiply rounding with every step


def ranks_equal(losses: Log, world_size: int) -> str:
    """Return whether the parameters have one norm on all ranks after every step."""
    norms = [[event["pnorm"] for event in events if "step" in event] for events in losses.values()]
    same = len(norms) == world_size and all(norms[0]) and all(other == norms[0] for other in norms)
    return yes(same)


def parity(one: Log, ranks: Log) -> str:
    """Compare losses, gradient norms and parameter norms of the first steps with those of one process."""
    ours, theirs = _steps(one), _steps(ranks)
    pairs = [(a[key], b[key]) for a, b in zip(ours[:FIRST_STEPS], theirs) for key in ("pnorm", "gnorm")]
    weights = max((relative(a, b) for a, b in pairs if a and b), default=1.0)
    alone, together = _losses(one[0]), mean_losses(ranks)
    loss = max((relative(a, b) for a, b in zip(alone[:FIRST_STEPS], together)), default=1.0)
    summed = max((relative(a, b * len(ranks)) for a, b in zip(alone[:FIRST_STEPS], together)), default=1.0)
    if max(weights, min(loss, summed)) < TOLERANCE:
        return "yes" if loss < TOLERANCE else "yes (sum)"
    return f"loss {min(loss, summed):.0e}, weights {weights:.0e}"


def default_mode(one: Log, larger: Log, ranks: Log) -> str:
    """Compare the first step with that of one process on a batch as large as all ranks', and the learning rates.

    `one` is the original run, `larger` the same with a batch W times as large, `ranks` W processes in the default mode.
    """
    if not _steps(larger) or not _steps(ranks):
        return "?"
    wanted, found = _steps(larger)[0]["gnorm"], _steps(ranks)[0]["gnorm"]
    difference = relative(wanted, found) if wanted and found else 1.0
    gradient = "gradient yes" if difference < TOLERANCE else f"gradient {difference:.0e}"
    before, after = _steps(one)[0]["lr"], _steps(ranks)[0]["lr"]
    factors = sorted({round(b / a, 4) for a, b in zip(before, after) if a})
    return f"{gradient}, lr x {' '.join(f'{factor:g}' for factor in factors) or '?'}"


def samples_once(one: Log, ranks: Log) -> str:
    """Return whether the ranks' batches together hold the samples of one process's, training step by training step."""
    single = _batches(one.get(0, []))
    together = [sorted(chain(*batches), key=str) for batches in zip(*(_batches(events) for events in ranks.values()))]
    number = min(len(single), len(together))
    if not number:
        return "?"
    agree = [sorted(a, key=str) == b for a, b in zip(single, together)]
    return "yes" if all(agree) else f"NO, first in step {agree.index(False)} of {number}"


def foreign_writes(writes: Log, saves: Log, folder: str) -> list[str]:
    """Return the files of the project that ranks other than 0 have written."""
    found = set()
    for events in (events for rank, events in writes.items() if rank):
        for event in events:
            if event["ev"] not in ("os.mkdir", "subprocess.Popen", "socket.connect"):
                found |= {_place(event["cwd"], target) for target in event["t"]}
    for events in (events for rank, events in saves.items() if rank):
        found |= {event["path"] for event in events if event["ev"] == "save"}
    own = (".rank", "__pycache__")  # the observation's own
    return sorted(path for path in found if path.startswith(folder) and not any(mark in path for mark in own))


def _place(folder: str, target: str) -> str:
    return target if target.startswith("/") else f"{folder}/{target}"


def _steps(log: Log) -> list[dict[str, Any]]:
    return [event for event in log.get(0, []) if "step" in event]


def _losses(events: list[dict[str, Any]]) -> list[float]:
    return [event["loss"] for event in events if "loss" in event]


def mean_losses(ranks: Log) -> list[float]:
    return [sum(values) / len(values) for values in zip(*(_losses(events) for events in ranks.values()))]


def _batches(events: list[dict[str, Any]]) -> list[list[Any]]:
    return [event["idx"] for event in events if event["ev"] == "backward" and event["idx"] is not None]


def relative(a: float, b: float) -> float:
    return abs(a - b) / max(1e-8, abs(a), abs(b))


def yes(value: bool) -> str:
    return "yes" if value else "NO"
