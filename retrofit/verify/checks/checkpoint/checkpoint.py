"""Checkpoints of several processes against those of one: keys, shapes, and loading them in one process."""

from __future__ import annotations

import re
from pathlib import PurePath

from retrofit.distributed.ddp.unwrap import WRAPPER_PREFIXES
from retrofit.verify.checks.finding import LABELS, Finding, fail_with, first_few, joined, not_made, why_not
from retrofit.verify.checks.options import CheckOptions
from retrofit.verify.checks.output.paths import is_temporary
from retrofit.verify.checks.processes.errors import cause_of, first_failure
from retrofit.verify.checks.training.causes.changed_in_place import CAUSE as IN_PLACE
from retrofit.verify.checks.training.differences import tensors_differ
from retrofit.verify.checks.training.ranks_agree import initial_disagreement
from retrofit.verify.evidence import Run, Runs
from retrofit.verify.trace.events import FileSave, InitialWeights, Keys
from retrofit.verify.verdict import Verdict, count, not_applicable, passed

from .first_epoch import starts_elsewhere, state_of
from .one_process.own_restart import fails_as_before

WRAPPER_CLASSES = {"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "OptimizedModule"}
MORE = "..."  # replaces the keys that a trace does not list


def checkpoint(runs: Runs, options: CheckOptions) -> Verdict:
    """Compare what is saved, and load it on one process, with the script after and before the change."""
    check, title = "checkpoint", "a checkpoint of several processes is one of a single process"
    reason = not_made(runs, "many")
    if reason:
        return not_applicable(check, title, reason)
    many = runs["many"]
    reloads = [runs[name] for name in ("reload", "reload_original") if name in runs]
    reloads = [run for run in reloads if fails_as_before(runs, run, options) is None]
    saved, expected = _saves(many), _saves(runs["one"]) if "one" in runs else {}
    if not saved and not reloads:
        if expected and many.finished:
            return fail_with(check, title, Finding(f"several processes save nothing, one saves {first_few(expected)}"))
        return not_applicable(check, title, why_not(many, "nothing is saved with torch.save"))
    if not many.finished:  # what it has saved may be a part of what it would, and its names are those of other files
        saved = {name: keys for name, keys in saved.items() if name in expected}
    fault = _content_fault(saved, expected)
    initial = initial_disagreement(many)
    is_known = initial is None or initial.cause != IN_PLACE  # else what is loaded is changed before the first step
    for run in reloads if is_known else []:
        fault = fault or _reload_fault(many, run, options.tolerance_for("float64"))
    if fault is not None:
        return fail_with(check, title, fault)
    return passed(check, title, _summary(saved, expected, reloads), joined(_notes(saved, expected, reloads)))


def _saves(run: Run) -> dict[str, Keys]:
    """Return the content of the files that a run saved, by name, in order; of one saved repeatedly the first."""
    found: dict[str, Keys] = {}
    for rank in run.ranks:
        for event in rank.of(FileSave):
            if is_temporary(event.path):  # it is recorded again under the name that it is given
                continue
            found.setdefault(PurePath(event.path).name, event.keys)
    return found


def _pairs(saved: dict[str, Keys], expected: dict[str, Keys]) -> list[tuple[str, Keys, Keys]]:
    """Return what was saved with what one process saved: under the same name, else as the same of all files."""
    by_name = [(name, saved[name], expected[name]) for name in saved if name in expected]
    if by_name:
        return by_name
    return [(name, ours, theirs) for (name, ours), theirs in zip(saved.items(), expected.values())]


def _content_fault(saved: dict[str, Keys], expected: dict[str, Keys]) -> Finding | None:
    pairs = _pairs(saved, expected) or [(name, keys, {}) for name, keys in saved.items()]
    for name, ours, theirs in pairs:
        prefixed = [key for key in ours if key not in theirs and without_prefix(key) != key]
        others = [key for key, kind in ours.items() if theirs.get(key) != kind]
        wrapped = [key for key in others if ours[key].rpartition(":")[2] in WRAPPER_CLASSES]
        if prefixed or wrapped:
            what = f"key {prefixed[0]!r}" if prefixed else f"a whole {ours[wrapped[0]]}"
            return Finding(f"{name} holds the wrapper", "RF502", value=f"{what} in {count(len(ours), 'key')}")
        fault = _key_fault(name, ours, theirs)
        if fault is not None:
            return fault
    return None


def _key_fault(name: str, ours: Keys, theirs: Keys) -> Finding | None:
    absent = [key for key in theirs if key not in ours and MORE not in ours]
    if absent:
        return Finding(
            f"{name} lacks what one process saves", value=f"{count(len(absent), 'key')}: {first_few(absent)}"
        )
    for key, kind in theirs.items():
        if key in ours and _shape(ours[key]) != _shape(kind):
            return Finding(f"{name} holds {key} in another shape", value=f"{ours[key]}, {kind} on one process")
    return None


def without_prefix(key: str) -> str:
    """Return a flattened key without the prefixes of wrappers, wherever they are in it."""
    names = "|".join(re.escape(prefix) for prefix in WRAPPER_PREFIXES)
    return re.sub(rf"(^|(?<=[.\[/]))({names})+", "", key)


def _shape(kind: str) -> str | None:
    """Return the shape of a tensor: "[3, 3]"; None for anything else."""
    found = re.fullmatch(r"(?:b?float|u?int|complex|bool|qu?int)\w*(\[.*\])", kind)
    return found.group(1) if found else None


def _reload_fault(many: Run, run: Run, tolerance: float) -> Finding | None:
    label = LABELS[run.name]
    failure = first_failure(run)
    if not run.finished and failure is not None:
        return Finding(f"{label} failed", cause_of(failure, run), value=failure.sentence)
    started, loaded = state_of(many.main.of(InitialWeights)), state_of(run.main.of(InitialWeights))
    for opt in starts_elsewhere(many, run, 0, tolerance):
        if opt in started and not tensors_differ(loaded[opt], started[opt], tolerance):
            return Finding(f"{label} starts from the initial weights: the checkpoint was not loaded", "RF507")
        return Finding(f"{label} starts from other weights than the training had when it was saved", "RF507")
    return None


def _summary(saved: dict[str, Keys], expected: dict[str, Keys], reloads: list[Run]) -> str:
    pairs = _pairs(saved, expected)
    parts = [f"{count(len(pairs), 'file')} with the keys and shapes of one process"] if pairs else []
    judged = [run.name for run in reloads if run.ranks and run.main.of(InitialWeights)]
    if judged:
        before = ", so does the script before the change" if "reload_original" in judged else ""
        parts.append(f"one process continues from the saved weights{before}")
    return ", ".join(parts) or f"{count(len(saved), 'file')} without a wrapper's prefix"


def _notes(saved: dict[str, Keys], expected: dict[str, Keys], reloads: list[Run]) -> list[str]:
    extra = [key for _, ours, theirs in _pairs(saved, expected) for key in ours if key not in theirs]
    notes = [f"{count(len(extra), 'key')} more than on one process: {first_few(extra)}"] if extra else []
    if not reloads:
        notes.append("loading was not tried: no arguments that resume were given")
    notes += [
        f"{LABELS[run.name]} made no step, so its weights are unknown"
        for run in reloads
        if run.finished and not run.main.of(InitialWeights)
    ]
    return notes
