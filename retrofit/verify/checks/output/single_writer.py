"""Files that several ranks write or read too early, and logs and checkpoints of ranks other than 0."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath

from retrofit.verify.checks.finding import Finding, fail_with, first_few, joined, not_made, ranks_named, why_not
from retrofit.verify.checks.options import CheckOptions
from retrofit.verify.evidence import RankTrace, Run, Runs
from retrofit.verify.trace.events import FileChange, FileLock, FileSave, LoggedScalar
from retrofit.verify.verdict import Verdict, count, not_applicable, passed

from .early_reads import early_read_fault
from .paths import is_part_of_rank, is_temporary, names_rank
from .run_names import run_name_fault

LOG_PARTS = re.compile(r"events\.out\.tfevents|(^|/)wandb(/|$)|\.log$|\.log\.\d+$", re.IGNORECASE)
TABLE = re.compile(r"\.(csv|tsv|jsonl|txt)$", re.IGNORECASE)  # a log when it is written during the training


@dataclass(frozen=True)
class Written:
    """A file that a rank wrote: how many optimizer steps were finished then, first and last, and how."""

    first_step: int
    last_step: int
    is_checkpoint: bool


def single_writer(runs: Runs, options: CheckOptions) -> Verdict:
    """Look for files that several ranks write, and for logs and checkpoints of ranks other than 0."""
    check, title = "single_writer", "every file is written by one rank, and read after that"
    reason = not_made(runs, "many")
    if reason:
        return not_applicable(check, title, reason)
    many = runs["many"]
    files = [written_by(rank) for rank in many.ranks]
    if many.world_size == 1 or not any(files):
        return not_applicable(check, title, why_not(many, "no file was written"))
    fault = writer_fault(many) or early_read_fault(many)
    if fault is not None:
        return fail_with(check, title, fault)
    by_others = {rank: sorted(own) for rank, own in enumerate(files) if rank and own}
    notes = [f"{ranks_named([rank])} writes {first_few(paths)}" for rank, paths in by_others.items()]
    return passed(check, title, f"{count(sum(map(len, files)), 'file')}", joined(notes))


def writer_fault(run: Run) -> Finding | None:
    """Return a fault for the first file that several ranks write, or that a rank other than 0 should not write."""
    files = [written_by(rank) for rank in run.ranks]
    locks = _lock_files(run)
    files = [{path: one for path, one in own.items() if path not in locks} for own in files]
    return _shared_fault(files) or _log_fault(run, files) or _own_copy_fault(run, files) or run_name_fault(run.ranks)


def _lock_files(run: Run) -> set[str]:
    """Return the files that hold nothing whenever they are locked."""
    locked = [(event.path, event.is_empty) for rank in run.ranks for event in rank.of(FileLock)]
    return {path for path, _ in locked} - {path for path, is_empty in locked if not is_empty}


def written_by(rank: RankTrace) -> dict[str, Written]:
    """Return the files that a rank wrote, without temporary ones and caches."""
    checkpoints = {_plain(event.path) for event in rank.of(FileSave)}
    steps: dict[str, list[int]] = {}
    for event in rank.events:
        if isinstance(event, FileSave) or (isinstance(event, FileChange) and event.op in ("write", "rename")):
            steps.setdefault(_plain(event.path), []).append(event.step)
    return {
        path: Written(min(found), max(found), path in checkpoints)
        for path, found in steps.items()
        if not is_temporary(path)
    }


def _shared_fault(files: list[dict[str, Written]]) -> Finding | None:
    """Return a fault for the first file that two ranks write."""
    paths = dict.fromkeys(path for own in files for path in own)
    shared = {path: [own[path] for own in files if path in own] for path in paths}
    shared = {path: found for path, found in shared.items() if len(found) > 1}
    if not shared:
        return None
    # A checkpoint that all ranks write is worse than a log, and a log hides nothing that set-up does.
    codes = {path: _code_of(path, found) for path, found in shared.items()}
    code = next(code for code in ("RF501", "RF504", "RF505") if code in codes.values())
    path = next(path for path in codes if codes[path] == code)
    ranks = [rank for rank, own in enumerate(files) if path in own]
    step = min(found.first_step or found.last_step for found in shared[path])
    others = first_few(other for other in shared if other != path)
    return Finding(
        f"{ranks_named(ranks)} write {path}",
        code,
        None if code == "RF504" or not step else step - 1,
        note=f"also written by several ranks: {others}" if others else None,
    )


def _code_of(path: str, found: list[Written]) -> str:
    if LOG_PARTS.search(path) and not any(one.is_checkpoint for one in found):
        return "RF505"
    return "RF501" if sum(one.last_step > 0 for one in found) > 1 else "RF504"


def is_log(path: str, found: list[Written]) -> bool:
    """Return whether a file is a log: by its name, or a table that grows during the training."""
    if any(one.is_checkpoint for one in found):
        return False
    return bool(LOG_PARTS.search(path)) or (bool(TABLE.search(path)) and any(one.last_step > 0 for one in found))


def _log_fault(many: Run, files: list[dict[str, Written]]) -> Finding | None:
    if many.main.of(LoggedScalar):
        for trace in many.ranks[1:]:
            scalars = trace.of(LoggedScalar)
            if scalars:
                value = f"{count(len(scalars), 'value')}, {scalars[0].name} first"
                return Finding(f"rank {trace.rank} logs scalars too", "RF505", value=value)
    has_own = any(is_log(path, [one]) for path, one in files[0].items())
    for rank, own in enumerate(files):
        for path, one in own.items():
            if rank and has_own and is_log(path, [one]) and not names_rank(path, rank):
                return Finding(f"rank {rank} writes a log of its own, as rank 0 does", "RF505", value=path)
    return None


def _own_copy_fault(many: Run, files: list[dict[str, Written]]) -> Finding | None:
    if not many.finished:  # rank 0 may have ended before it wrote its part
        return None
    for rank, own in enumerate(files):
        for path, one in own.items():
            if not rank or not one.is_checkpoint or path in files[0]:
                continue
            if not names_rank(path, rank) and not is_part_of_rank(path, rank, files[0]):
                step = one.first_step - 1 if one.first_step else None
                return Finding(f"rank {rank} saves a checkpoint of its own", "RF501", step, path)
    return None


def _plain(path: str) -> str:
    return str(PurePath(path))
