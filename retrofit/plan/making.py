"""The plan is made: the script is profiled, the link is measured or taken, and each strategy is predicted."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from retrofit.verify.runs.launches import divide_flag
from retrofit.why.run import Start

from .history import factors
from .link.known import link_of, slower
from .link.link import Link
from .link.measure import measure_here
from .plan import Plan
from .predict.bounds import bounds_of
from .predict.prediction import predictions
from .profile.profile import Profile, read_profile
from .profile.run import profiled

MEASURED = "measured"


@dataclass(frozen=True)
class Wanted:
    """What is asked for."""

    start: Start
    gpus: Sequence[int]
    link: str  # inside a machine: a name, a file, numbers, or MEASURED
    between: str | None  # machines
    per_machine: int
    gpu_bytes: float | None
    price: float | None
    batch_flag: str | None  # divided by the number of GPUs; None: each GPU has the batch of one
    is_converted: bool


def made(wanted: Wanted, say: Callable[[str], None]) -> Plan:
    """Return the plan; `say` is told what is being done.

    Raises ScriptFailed and TooFewSteps for the script, NoLink for the link, ValueError for an option's value.
    """
    num_gpus, here = devices()
    links = _links(wanted, min(here, max(wanted.gpus)), say)
    alone = _profile(wanted.start, 1, num_gpus, say)
    profiles: dict[int, Profile] = {}
    known: dict[tuple[int, tuple[str, ...]], Profile] = {}
    for gpus in wanted.gpus:
        arguments = list(wanted.start.arguments)
        if wanted.batch_flag is not None:
            arguments = divide_flag(arguments, wanted.batch_flag, gpus)
        key = min(gpus, here), tuple(arguments)
        if key not in known:
            is_same = key == (1, tuple(wanted.start.arguments))
            start = replace(wanted.start, arguments=arguments)
            known[key] = alone if is_same else _profile(start, key[0], num_gpus, say)
        profiles[gpus] = known[key]
    script = wanted.start.script
    shares_statistics = wanted.is_converted and os.environ.get("RETROFIT_BATCHNORM") != "local"
    corrections = {gpus: factors(script, gpus, links[gpus].name) for gpus in wanted.gpus}
    found = [
        one.times(corrections[gpus].get(one.strategy.name, 1.0))
        for gpus in wanted.gpus
        for one in predictions(profiles[gpus], links[gpus], gpus, wanted.per_machine, shares_statistics)
    ]
    gpu_bytes = wanted.gpu_bytes or alone.facts.get("gpu_bytes")
    bounds = [bounds_of(profiles[gpus], links[gpus], gpus) for gpus in wanted.gpus]
    return Plan(
        alone, profiles, links, found, bounds, gpu_bytes, wanted.per_machine, wanted.price,
        wanted.batch_flag is not None, _notes(wanted), corrections,
    )  # fmt: skip


def _profile(start: Start, copies: int, num_gpus: int, say: Callable[[str], None]) -> Profile:
    say(f"{'one process' if copies == 1 else f'{copies} processes at once, each alone'}, {start.steps} steps ...")
    with profiled(start, copies, num_gpus) as folder:
        return read_profile(folder)


def _links(wanted: Wanted, ranks: int, say: Callable[[str], None]) -> dict[int, Link]:
    """Return the link for each number of GPUs: that inside a machine, or the slower one where there are several."""
    if wanted.link == MEASURED:
        say(f"the link between {max(2, ranks)} processes of this machine ...")
        inside = measure_here(max(2, ranks))
    else:
        inside = link_of(wanted.link)
    between = inside if wanted.between is None else slower(inside, link_of(wanted.between))
    return {gpus: inside if gpus <= wanted.per_machine else between for gpus in wanted.gpus}


def _notes(wanted: Wanted) -> list[str]:
    most, each = max(wanted.gpus), wanted.per_machine
    if most <= each or wanted.between is not None:
        return []
    machines = -(-most // each)
    return [
        f"{most} GPUs are {machines} machines of {each} (--per-machine): the link between them is taken to be that "
        "inside of one; --between names another"
    ]


def devices() -> tuple[int, int]:
    """Return the number of GPUs, and of processes that this machine has a device or a core for."""
    import torch

    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return num_gpus, num_gpus or cores


def is_converted(script: Path) -> bool:
    """Return whether a script uses the runtime."""
    text = script.read_text(encoding="utf-8", errors="replace")
    return "multigpu" in text or "retrofit.distributed" in text
