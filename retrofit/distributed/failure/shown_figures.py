"""Say where rank 0 shows a figure that is its own: another rank would show another one at the same place.

Each rank notes what its prints, log messages and tracked values say, the first, second, fourth, eighth time and so on
at a line of the script. The ranks compare that where they compare their parameters, and when they leave the group.
"""

from __future__ import annotations

import functools
import math
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch

from ..collectives import gather_objects
from ..process.options import CONSISTENCY, read_twin
from ..process.process_group import before_leaving, get_rank, get_world_size
from .collective_calls import called_from

# Methods and functions of writers and trackers that are given figures.
TRACKING = frozenset({"add_scalar", "add_scalars", "log", "log_metric", "log_metrics", "track", "writerow"})
NUMBER = re.compile(r"(?<![\w.:])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w:])|\bnan\b|\binf\b", re.IGNORECASE)
DATE, CLOCK = r"\d{4}([-/.])\d{1,2}\1\d{1,2}", r"\d{1,3}:\d{2}(?::\d{2}(?:[.,]\d+)?Z?)?"
# A date, a time of day or a duration: 2026-01-31, 12:05, 0:00:03.447589, 2026-01-31T12:05:09,123.
OF_THE_CLOCK = re.compile(rf"(?<![\w.:])(?:{DATE}(?:[T_]{CLOCK})?|{CLOCK})(?!\w|[:.,]\d)")
# Numbers next to such words are about the machine or the run, and each rank has its own.
OF_THE_RUN = re.compile(
    r"\b(time|times|took|ms|msecs?|sec|secs|seconds?|s/it|it/s|img|imgs|images?/s|fps|[tg]?flops|mfu|mem|memory|speed|"
    r"eta|elapsed|remaining|throughput|date|hours?|min|mins|minutes?|gpu|gpus|mb|mib|gb|gib|pid|port|"
    r"process|processes|rank|ranks|world)\b|[a-z]+(/|_per_)s(ec)?\b|\d ?(s|ms|sec)\b",
    re.IGNORECASE,
)
# In such a line only what these words announce is compared.
OF_THE_MODEL = re.compile(
    r"(loss|acc\w*|error|err|score|iou|dice|f1|auc|map|ap|precision|recall|psnr|ssim|bleu|rouge|ppl|perplexity|"
    r"top.?[15]|mae|mse|rmse)\W*$",
    re.IGNORECASE,
)
RELATIVE = 1e-5  # what the kernels of a GPU may leave between two ranks
LONGEST, MOST_SAID = 120, 5  # characters of a text, places in a message

Shown = dict[tuple[str, int], str]  # texts by FILE:LINE and how often that was reached

_times: dict[str, int] = {}
_shown: Shown = {}
_said: set[str] = set()


def note_shown(*values: Any, place: str = "") -> None:
    """Note what this rank shows, or would show if it were rank 0; `place` is FILE:LINE, of the caller by default."""
    if get_world_size() == 1:
        return
    if not place:
        _, frame = called_from(sys._getframe(1))
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    _times[place] = times = _times.get(place, 0) + 1
    if times & (times - 1) == 0:
        with suppress(Exception):  # of the values' own __str__, which rank 0 raises where it prints them
            _shown[place, times] = " ".join(map(str, values))


def note_tracked(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Note what a call with this name gives to a writer or a tracker."""
    if name in TRACKING:
        note_shown(*args, *kwargs.values())


def watch_tracking(tool: Any) -> Any:
    """Return a writer, a run or a module of a tracker that notes what it is given from now on."""
    for name in TRACKING if get_world_size() > 1 and not isinstance(tool, torch.Tensor) else ():
        with suppress(Exception):  # it has no such method, or takes no attribute
            setattr(tool, name, _noting(name, getattr(tool, name)))
    return tool


def _noting(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def noted(*args: Any, **kwargs: Any) -> Any:
        note_tracked(name, args, kwargs)
        return method(*args, **kwargs)

    return noted


def take_shown() -> Shown:
    """Return what this rank has noted since the last time."""
    taken = dict(_shown)
    _shown.clear()
    return taken


def say_where_ranks_differ(of_ranks: list[Shown]) -> None:
    """Say once of each place at which a rank has another figure than rank 0; rank 0 says it."""
    found = dict(_differing(of_ranks)) if get_rank() == 0 else {}
    new = [text for place, text in found.items() if place not in _said]
    _said.update(found)
    if new:
        rest = f"; and {len(new) - MOST_SAID} more" if len(new) > MOST_SAID else ""
        print(
            f"notice: what rank 0 shows is its own share, and other ranks have other figures: "
            f"{'; '.join(new[:MOST_SAID])}{rest}. rd.reduce_dict({{'loss': loss}}) gives the mean over the ranks; "
            "RETROFIT_CONSISTENCY=off switches this comparison off",
            file=sys.stderr,
            flush=True,
        )


def _differing(of_ranks: list[Shown]) -> Iterator[tuple[str, str]]:
    for (place, times), text in of_ranks[0].items():
        for rank, shown in enumerate(of_ranks[1:], 1):
            if differ(text, shown.get((place, times), text)):
                other = shown[place, times]
                yield place, f"{os.path.basename(place)} {text[:LONGEST]!r} (rank {rank}: {other[:LONGEST]!r})"
                break


def differ(text: str, other: str) -> bool:
    """Return whether two texts say the same of other figures; what tells of the machine does not count."""
    text, other = OF_THE_CLOCK.sub("TIME", text), OF_THE_CLOCK.sub("TIME", other)
    if text == other or NUMBER.sub("#", text) != NUMBER.sub("#", other):
        return False
    of_run, last = OF_THE_RUN.search(text), 0
    for match, number in zip(NUMBER.finditer(text), NUMBER.findall(other)):
        words, last = text[last : match.start()], match.end()
        a, b = float(match.group()), float(number)
        is_same = a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= RELATIVE * max(abs(a), abs(b))
        if not is_same and (not of_run or OF_THE_MODEL.search(words)):
            return True
    return False


def _compare_last() -> None:
    if get_world_size() > 1 and read_twin(CONSISTENCY) != "off":
        say_where_ranks_differ(gather_objects(take_shown()))


before_leaving.append(_compare_last)
