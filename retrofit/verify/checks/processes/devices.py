"""The GPU that each rank trains on and loads checkpoints to."""

from __future__ import annotations

from retrofit.verify.checks.finding import Finding, fail_with, not_made, ranks_named, why_not
from retrofit.verify.checks.options import CheckOptions
from retrofit.verify.evidence import RankTrace, Run, Runs
from retrofit.verify.trace.events import FileLoad, FileSave, OptimizerFound
from retrofit.verify.verdict import Verdict, count, not_applicable, passed


def devices(runs: Runs, options: CheckOptions) -> Verdict:
    """Look for checkpoints that are loaded onto the GPU they came from, and for ranks that share a GPU."""
    check, title = "devices", "every process keeps to its own device"
    reason = not_made(runs, "many")
    if reason:
        return not_applicable(check, title, reason)
    distributed = [run for run in runs.values() if run.world_size > 1]
    checkpoints = _checkpoints(runs)
    for run in distributed:
        fault = _load_fault(run, checkpoints) or _sharing_fault(run)
        if fault is not None:
            return fail_with(check, title, fault)
    loads = [event for run in distributed for rank in run.ranks for event in _loads(rank, checkpoints)]
    computing = [device for run in distributed for device in _devices(run) if device]
    if not loads and not computing:
        return not_applicable(check, title, why_not(runs["many"], "no checkpoint was loaded, and no GPU was used"))
    parts = [f"{count(len(loads), 'load')} with map_location"] if loads else []
    parts += ["each rank has a GPU of its own"] if computing else []
    return passed(check, title, ", ".join(parts))


def _checkpoints(runs: Runs) -> set[str]:
    """Return the files that were saved while a model was trained: others hold data, which has no device."""
    saves = (event for run in runs.values() for rank in run.ranks for event in rank.of(FileSave))
    return {event.path for event in saves if event.step > 0}


def _loads(rank: RankTrace, checkpoints: set[str]) -> list[FileLoad]:
    """Return the script's own loads of checkpoints; how a library loads what it has saved is its own business."""
    loads = (event for event in rank.of(FileLoad) if event.by_script)
    return [event for event in loads if event.is_own and event.path in checkpoints]


def _load_fault(run: Run, checkpoints: set[str]) -> Finding | None:
    for rank in run.ranks:
        for event in _loads(rank, checkpoints):
            if not event.has_map_location:
                summary = f"rank {rank.rank} loads a checkpoint without map_location"
                return Finding(summary, "RF503", value=event.path)
    return None


def _sharing_fault(run: Run) -> Finding | None:
    by_device: dict[str, list[int]] = {}
    for rank, device in enumerate(_devices(run)):
        if device:
            by_device.setdefault(device, []).append(rank)
    for device, ranks in by_device.items():
        if len(ranks) > 1:
            return Finding(f"{ranks_named(ranks)} compute on one GPU", "RF604", value=device)
    return None


def _devices(run: Run) -> list[str | None]:
    """Return the GPU that each rank trains on, None for one that trains on the CPU."""
    found = []
    for rank in run.ranks:
        named = (event.device for event in rank.of(OptimizerFound))
        found.append(next((device for device in named if device is not None), None))
    return found
