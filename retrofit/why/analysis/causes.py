"""Causes of lost time, each with its evidence. A cause is named only where the measurement shows it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from retrofit.why.instruments.loaders import COLLATE
from retrofit.why.instruments.stalls import CURVES, LOGGING, PRINT, SAVE, WAIT
from retrofit.why.instruments.training import BACKWARD, OPTIMIZER

from .picture import Picture
from .replay import num_buckets, reduced
from .steps import AFTER, FORWARD, GRADIENTS, LOADING

LATE = 0.05  # of a step: a rank that is later than that, and is so
UNEXPLAINED = 0.20  # of a step: a rank that is later than that is named without a reason, too
OFTEN = 0.75  # of the steps, is late
EXPLAINED = 0.5  # of the lateness, by one phase
LARGE = 0.05  # of a step, for a stall
LOADER = 0.10
SLOW_LINK = 125e6  # bytes/s: 1 Gbit/s
COMMUNICATION = 0.20
USUAL_BUCKET = 25 * 2**20  # bytes, torch's default
MANY = 4  # times as many buckets as that makes

WORDS = {
    LOADING: "its samples take longer to load",
    COLLATE: "its collate_fn takes longer",
    FORWARD: "its forward pass takes longer",
    BACKWARD: "its backward pass takes longer",
    GRADIENTS: "what it does with the gradients (clipping) takes longer",
    OPTIMIZER: "its optimizer takes longer",
    AFTER: "what it does after a step takes longer",
    PRINT: "it prints more",
    LOGGING: "it logs more",
    CURVES: "it writes curves",
    SAVE: "it saves in every step",
    WAIT: "it reads more results from its GPU",
}


@dataclass(frozen=True)
class Cause:
    """Why a step takes longer than it must."""

    name: str  # "late-rank", "loader", ...
    summary: str
    seconds: float  # lost in each step
    evidence: str
    rank: int | None = None  # that is late
    phase: str = ""


def causes_of(picture: Picture) -> list[Cause]:
    """Return the causes that are found, the dearest first."""
    found = [cause for kind in (_late, _stalls, _loader, _buckets, _layers, _link, _threads) for cause in kind(picture)]
    return sorted(found, key=lambda cause: -cause.seconds)


def _late(picture: Picture) -> Iterator[Cause]:
    late, step = picture.late, picture.seconds
    if late is None or late.seconds < LATE * step or late.how_often < OFTEN:
        return
    what, seconds = next(iter(late.excess.items()), ("", 0.0))
    own, others = late.samples
    shown = (
        f"{1e3 * late.seconds:.1f} ms in a step of {1e3 * step:.1f} ms, the last in {late.how_often:.0%} of the steps"
    )
    if seconds < EXPLAINED * late.seconds and late.queued >= EXPLAINED * late.seconds:
        reason, phase = "it waits for a core: another process takes its CPU", "core"
        shown += f"; {1e3 * late.queued:.1f} ms more than the others in the queue of a core"
    elif own > 1.1 * others and what in (FORWARD, BACKWARD, LOADING, COLLATE):
        reason, phase = f"its batches are larger: {own:g} samples, the others have {others:g}", "samples"
    elif seconds >= EXPLAINED * late.seconds and late.queued >= EXPLAINED * seconds:
        reason, phase = "it waits for a core: another process takes its CPU", "core"
        shown += f"; {1e3 * late.queued:.1f} ms more than the others in the queue of a core"
    elif seconds >= EXPLAINED * late.seconds:
        reason, phase = WORDS.get(what, f"{what} takes longer"), what
        shown += f"; {what}: {1e3 * seconds:.1f} ms more than the others"
    elif late.seconds >= UNEXPLAINED * step:
        reason, phase = "no part of the step alone explains it", ""
    else:
        return
    yield Cause(
        "late-rank", f"rank {late.rank} is late, and the others wait: {reason}", late.seconds, shown, late.rank, phase
    )


def _stalls(picture: Picture) -> Iterator[Cause]:
    for names, name, what in (
        ((PRINT, LOGGING, CURVES), "logging", "printing and logging take"),
        ((SAVE,), "saving", "checkpoints take"),
        ((WAIT,), "gpu-reads", "reading results from the GPU (.item()) takes"),
    ):
        of_ranks = [
            median(sum(step.ranks[rank].phases.get(one, 0.0) for one in names) for step in picture.steps)
            for rank in range(picture.world_size)
        ]
        dearest = max(of_ranks)
        if dearest >= LARGE * picture.seconds:
            rank = of_ranks.index(dearest)
            shown = f"{1e3 * dearest:.1f} ms of {1e3 * picture.seconds:.1f} ms on rank {rank}"
            yield Cause(name, f"{what} {dearest / picture.seconds:.0%} of each step", dearest, shown, phase=names[0])


def _loader(picture: Picture) -> Iterator[Cause]:
    loading = min(
        median(
            step.ranks[rank].phases.get(LOADING, 0.0) + step.ranks[rank].phases.get(COLLATE, 0.0)
            for step in picture.steps
        )
        for rank in range(picture.world_size)
    )
    if loading >= LOADER * picture.seconds:
        workers = max(facts.get("num_workers", 0) for facts in picture.facts)
        shown = f"{1e3 * loading:.1f} ms of {1e3 * picture.seconds:.1f} ms on every rank, with num_workers={workers}"
        yield Cause("loader", "every rank waits for its batches", loading, shown, phase=LOADING)


def _buckets(picture: Picture) -> Iterator[Cause]:
    options = picture.facts[0].get("ddp")
    number = num_buckets(picture.steps)
    if not options or not number:
        return
    usual = math.ceil(options["gradient_bytes"] / USUAL_BUCKET) + 1
    exposed = picture.of_meetings("transfers", BACKWARD)
    if number > MANY * usual and exposed >= LARGE * picture.seconds:
        size = options["gradient_bytes"] / number / 2**10
        shown = f"{number} all-reduces of {size:.0f} KiB in a step; bucket_cap_mb=25 makes about {usual}"
        yield Cause("small-buckets", "the gradients are reduced in many small buckets", exposed, shown, phase=BACKWARD)


def _layers(picture: Picture) -> Iterator[Cause]:
    """Collective calls in the forward pass, which BatchNorm over all ranks makes."""
    if not picture.facts[0].get("batchnorm_calls"):
        return
    seconds = picture.of_meetings("transfers", FORWARD) + picture.of_meetings("waits", FORWARD)
    calls = sum(meeting.phase == FORWARD for meeting in picture.steps[0].ranks[0].meetings)
    if calls and seconds >= LARGE * picture.seconds:
        shown = f"{calls} calls in the forward pass, {1e3 * seconds:.1f} ms of {1e3 * picture.seconds:.1f} ms"
        yield Cause("sync-batchnorm", "BatchNorm takes its statistics over all ranks", seconds, shown, phase=FORWARD)


def _link(picture: Picture) -> Iterator[Cause]:
    size, seconds, exposed = _traffic(picture)
    if not size or not seconds or exposed < COMMUNICATION * picture.seconds:
        return
    per_second = size / seconds
    if per_second < SLOW_LINK and not list(_buckets(picture)):
        shown = (
            f"{size / 2**20:.1f} MiB of a rank need {1e3 * seconds:.1f} ms, {per_second * 8 / 1e6:.0f} Mbit/s; "
            f"the ranks compute nothing for {1e3 * exposed:.1f} ms of these"
        )
        yield Cause("slow-link", "the link between the ranks is slow", exposed, shown, phase=BACKWARD)


def _traffic(picture: Picture) -> tuple[float, float, float]:
    """Return the bytes that a rank sends in the passes of a step, the seconds that they take, and those not hidden.

    Of the buckets of DDP; without these, of the collective calls in the passes: those of a sharded model.
    """
    share = (picture.world_size - 1) / picture.world_size
    buckets = median(sum(bucket[2] for bucket in step.ranks[0].buckets) for step in picture.steps)
    if buckets:
        return 2 * share * buckets, reduced(picture.steps), picture.of_meetings("transfers", BACKWARD)
    calls = median(
        sum(one.num_bytes for one in step.ranks[0].meetings if one.phase in (FORWARD, BACKWARD))
        for step in picture.steps
    )
    exposed = picture.of_meetings("transfers", FORWARD, BACKWARD)
    return share * calls, exposed, exposed


def _threads(picture: Picture) -> Iterator[Cause]:
    hosts = {facts["host"] for facts in picture.facts}
    for host in sorted(hosts):
        ranks = [rank for rank, facts in enumerate(picture.facts) if facts["host"] == host]
        threads = sum(picture.facts[rank]["num_threads"] for rank in ranks)
        cores = len({core for rank in ranks for core in picture.facts[rank]["cores"]})
        queued = min(median(step.ranks[rank].queued for step in picture.steps) for rank in ranks)
        if threads > cores and queued >= LOADER * picture.seconds and not picture.facts[0]["is_cuda"]:
            shown = f"{len(ranks)} processes with {threads // len(ranks)} threads each on {cores} cores"
            yield Cause("threads", "more threads than cores", queued, shown, phase="core")
