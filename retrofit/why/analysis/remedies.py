"""Remedies, each with the time that it saves in a step, predicted from what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from retrofit.why.instruments.loaders import COLLATE
from retrofit.why.instruments.stalls import CURVES, LOGGING, PRINT, SAVE
from retrofit.why.instruments.training import BACKWARD, OPTIMIZER

from .causes import Cause
from .picture import Picture
from .replay import exposed
from .steps import LOADING

SMALLEST = 0.01  # of a step: what saves less is not shown
LESS_OFTEN, ACCUMULATED, WORKERS = 10, 4, 2


@dataclass(frozen=True)
class Remedy:
    """What to change, and what it saves."""

    what: str
    seconds: float  # saved in each step
    basis: str  # what the prediction assumes

    def step_seconds(self, picture: Picture) -> float:
        """Return the length of a step with this remedy alone."""
        return picture.seconds - self.seconds


def remedies_for(picture: Picture, causes: Sequence[Cause]) -> list[Remedy]:
    """Return the remedies that save at least 1 % of a step, the best first. Each is predicted alone."""
    found = [one for kind in (_even, _fewer, _data, _traffic, _less_often, _layers) for one in kind(picture, causes)]
    return sorted(
        (one for one in found if one.seconds >= SMALLEST * picture.seconds), key=lambda remedy: -remedy.seconds
    )


def _fewer(picture: Picture, causes: Sequence[Cause]) -> Iterator[Remedy]:
    """One process, where it is faster than several."""
    if picture.speedup is not None and picture.speedup < 1:
        alone = picture.seconds * picture.speedup
        yield Remedy("train on one process", picture.seconds - alone, "measured: as many samples in one process")


def _even(picture: Picture, causes: Sequence[Cause]) -> Iterator[Remedy]:
    for cause in causes:
        if cause.name == "late-rank":
            yield Remedy(f"make rank {cause.rank} as fast as the others", cause.seconds, "the others wait no more")
        if cause.name == "threads":
            what = f"OMP_NUM_THREADS={_threads_each(picture)}: one thread per core, all processes together"
            yield Remedy(what, cause.seconds, "the wait for cores ends, the computation stays as long")


def _threads_each(picture: Picture) -> int:
    host = picture.facts[0]["host"]
    of_host = [facts["cores"] for facts in picture.facts if facts["host"] == host]
    return max(1, len({core for cores in of_host for core in cores}) // len(of_host))


def _data(picture: Picture, causes: Sequence[Cause]) -> Iterator[Remedy]:
    loading = picture.of_phase(LOADING, COLLATE)
    if any(facts.get("num_workers") for facts in picture.facts):
        return  # how long a worker needs for a batch is not seen
    left = max(0.0, loading / WORKERS - (picture.seconds - loading))
    basis = "batches are made during the computation; each process needs as many free cores"
    yield Remedy(f"DataLoader(num_workers={WORKERS})", loading - left, basis)


def _traffic(picture: Picture, causes: Sequence[Cause]) -> Iterator[Remedy]:
    now = exposed(picture.steps, lambda seconds: seconds)
    options = picture.facts[0].get("ddp") or {}
    if not now:
        return
    if options.get("float32"):
        half = exposed(picture.steps, lambda seconds: seconds / 2)
        yield Remedy(
            "reduce gradients in 16 bits (comm_hook bf16 or fp16)", now - half, "half the bytes, half the time"
        )
    if options.get("powersgd_bytes") and any(cause.name == "slow-link" for cause in causes):
        share = options["powersgd_bytes"] / options["gradient_bytes"]
        left = exposed(picture.steps, lambda seconds: seconds * share)
        basis = f"{share:.0%} of the bytes; gradients are approximated, and compressing takes time that is not in it"
        yield Remedy("PowerSGD of rank 2 (comm_hook powersgd)", now - left, basis)
    saved = now * (1 - 1 / ACCUMULATED) + picture.of_phase(OPTIMIZER) * (1 - 1 / ACCUMULATED)
    basis = (
        f"no_sync() in {ACCUMULATED - 1} of {ACCUMULATED} batches; the batch of a step is {ACCUMULATED} times as large"
    )
    yield Remedy(f"accumulate {ACCUMULATED} batches", saved, basis)
    if any(cause.name == "small-buckets" for cause in causes):
        yield Remedy("bucket_cap_mb=25, torch's default", now / 2, "a lower bound: fewer messages, the bytes stay")


def _less_often(picture: Picture, causes: Sequence[Cause]) -> Iterator[Remedy]:
    share = 1 - 1 / LESS_OFTEN
    for cause in causes:
        if cause.phase in (PRINT, LOGGING, CURVES):
            yield Remedy(f"print and log every {LESS_OFTEN}th step", share * cause.seconds, "in proportion")
        if cause.phase == SAVE:
            yield Remedy(f"save every {LESS_OFTEN}th step, or once in an epoch", share * cause.seconds, "in proportion")


def _layers(picture: Picture, causes: Sequence[Cause]) -> Iterator[Remedy]:
    for cause in causes:
        if cause.name == "sync-batchnorm":
            backward = sum(meeting.phase == BACKWARD for meeting in picture.steps[0].ranks[0].meetings)
            basis = f"without the calls in the forward pass; {backward} more in the backward pass end, too"
            yield Remedy("BatchNorm statistics of each rank's own share", cause.seconds, basis)
