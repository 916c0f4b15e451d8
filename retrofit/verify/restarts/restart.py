"""Restarts of the script from its checkpoint, by arguments that are given or found in its own parser."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from retrofit.verify.checks.checkpoint.continued_steps import drawn_samples
from retrofit.verify.checks.checkpoint.first_epoch import starts_elsewhere, steps_of_first_epoch
from retrofit.verify.checks.processes.errors import first_failure
from retrofit.verify.checks.training.causes.averaging import parameter_names
from retrofit.verify.evidence import Run
from retrofit.verify.trace.events import FileLoad, FileSave, InitialWeights, ParserUse

from .arguments import CHECKPOINT, FOLDER, LOADS, NUMBER, SURE, Form, forms

SAME = 1e-6  # relative, of weights that were saved and are loaded


@dataclass(frozen=True)
class Restart:
    """The arguments that continue a run, and where it continues."""

    arguments: list[str]
    checkpoint: str
    steps_done: int
    batches_done: int  # with a step, which is less than that where several optimizers step on one batch
    epochs_done: int = 1  # 0 where it was written before the end of the first epoch
    form: Form = field(default=Form((), SURE))  # of the arguments


def plan_restarts(given: Sequence[str] | None, many: Run, script: Run, snapshot: Path) -> list[Restart] | str:
    """Return how to restart from `snapshot`, the project as `many` left it after its first epoch; else why not.

    `script` is a run of the script to restart: its parser says how. `given` may hold {checkpoint} and {folder}, which
    become the path of the checkpoint and its folder, relative to the project. The likeliest way comes first.
    """
    if not snapshot.is_dir():
        return "there is no second training epoch to resume into; run at least two (--epochs 2)"
    checkpoint = _checkpoint(many, snapshot, given or ())
    if checkpoint is None:
        return "no checkpoint was written with torch.save in the first epoch"
    options = max((event.options for event in script.main.of(ParserUse)), key=len, default=[])
    known = forms(options) if given is None else [Form(tuple(given), SURE)]
    steps_done = _steps_in(checkpoint, many)
    batches, epochs = _num_batches(many, steps_done), int(steps_done == steps_of_first_epoch(many.main))
    found = [(form, _filled(form, checkpoint)) for form in known]
    return [
        Restart(arguments, checkpoint, steps_done, batches, epochs, form)
        for form, arguments in found
        if arguments is not None
    ]


def loading_ways(many: Run, ways: Sequence[Restart], snapshot: Path) -> list[Restart]:
    """Return ways to begin with what options load, each option with the last file that has its name (`--netG`).

    All options that have such a file come first, together: they are parts of one model.
    """
    saved = [event.path for event in many.main.of(FileSave) if (snapshot / event.path).is_file()]
    single: list[Restart] = []
    named: list[Restart] = []
    for way in ways:
        if CHECKPOINT not in way.form.arguments or way.form.needs == SURE:
            continue
        name = way.form.arguments[0].strip("-").lower()
        files = [path for path in saved if name in os.path.basename(path).lower()]
        path = files[-1] if files else way.checkpoint
        single.append(replace(way, checkpoint=path, arguments=_filled(way.form, path) or []))
        named += single[-1:] if files else []
    together = [argument for way in named for argument in way.arguments]
    return [*([replace(named[0], arguments=together)] if len(named) > 1 else []), *single]


def _filled(form: Form, checkpoint: str) -> list[str] | None:
    """Return the arguments of a form; None where the checkpoint has no number."""
    number = re.search(r"(\d+)(?!.*\d)", os.path.basename(checkpoint))
    if NUMBER in form.arguments and number is None:
        return None
    values = {CHECKPOINT: checkpoint, FOLDER: os.path.dirname(checkpoint) or "."}
    values[NUMBER] = str(int(number.group())) if number else ""
    arguments = list(form.arguments)
    for name, value in values.items():
        arguments = [argument.replace(name, value) for argument in arguments]
    return arguments


def is_refused(run: Run) -> bool:
    """Return whether the parser of the script refuses its arguments."""
    return all(status == 2 for status in run.statuses) and not run.num_steps and _says_usage(run)


def _says_usage(run: Run) -> bool:
    failure = first_failure(run)
    return (failure is not None and failure.type == "SystemExit") or any("usage:" in log for log in run.logs)


def fails_at_start(run: Run) -> bool:
    """Return whether a run ends with an error before its first step."""
    return not run.finished and not run.num_steps


def continues(many: Run, run: Run, restart: Restart) -> bool:
    """Return whether a run shows what its form of arguments must show."""
    if restart.form.needs == SURE:
        return not is_refused(run)
    if not loads(many, run, restart):
        return False
    return restart.form.needs == LOADS or (_has_weights(many, run) and _draws_what_follows(many, run, restart))


def loads(many: Run, run: Run, restart: Restart) -> bool:
    """Return whether a file of the checkpoint is read: of its folder, where that was given."""
    saved = {event.path for event in many.main.of(FileSave)}
    folder = os.path.dirname(restart.checkpoint)
    read = {event.path for rank in run.ranks for event in rank.of(FileLoad) if event.step == 0 and event.path in saved}
    return restart.checkpoint in read or any(os.path.dirname(path or "") == folder for path in read)


def _has_weights(many: Run, run: Run) -> bool:
    return bool(run.main.of(InitialWeights)) and not starts_elsewhere(many, run, 0, SAME)


def _draws_what_follows(many: Run, run: Run, restart: Restart) -> bool:
    """Return whether the first step has the samples of the run without the stop.

    Without arguments there is no other way to load its own checkpoint than to continue.
    """
    if not restart.arguments:
        return True
    expected, drawn = (drawn_samples(one.main, step)[:1] for one, step in ((many, restart.steps_done), (run, 0)))
    return bool(expected and drawn and expected[0] and drawn[0][-len(expected[0]) :] == expected[0])


def _checkpoint(many: Run, snapshot: Path, given: Sequence[str]) -> str | None:
    """Return the checkpoint in the snapshot: of those with most weights the fullest, the first of the last step.

    One that `given` names comes first. A cache of the data may have more entries, and the state of an optimizer, too.
    """
    saves = [event for event in many.ranks[0].of(FileSave) if (snapshot / event.path).is_file()]
    named = [event for event in saves if any(_is_named(event.path, argument) for argument in given)]
    first = many.main.first(InitialWeights)
    weights = set(parameter_names(many.main, first)) if first else set()
    best: tuple[tuple[int, int, int], str] | None = None
    for event in named or saves:
        held = sum(key in weights or _within(key, weights) for key in event.keys)
        fullness = (held, len(event.keys), event.step)
        if best is None or fullness > best[0]:  # averages of the weights are saved after them
            best = (fullness, event.path)
    return best[1] if best else None


def _within(key: str, weights: set[str]) -> bool:
    """Return whether an entry is one of these weights within a state: "model/fc.weight"."""
    return key.rpartition("/")[2] in weights


def _is_named(path: str, argument: str) -> bool:
    """Return whether an argument (`out/last.pt`, `--resume=out`) is this file or its folder."""
    name = os.path.normpath(argument.rpartition("=")[2] or ".")
    return name in (os.path.normpath(path), os.path.dirname(os.path.normpath(path)))


def _steps_in(checkpoint: str, many: Run) -> int:
    """Return the optimizer steps before the checkpoint was written for the last time in the first epoch."""
    most = steps_of_first_epoch(many.main) or 0
    steps = [event.step for event in many.ranks[0].of(FileSave) if event.path == checkpoint and event.step <= most]
    return steps[-1] if steps else most


def _num_batches(many: Run, steps_done: int) -> int:
    """Return after how many batches these steps were made; without batches, the most that one optimizer has made."""
    steps = many.main.steps[:steps_done]
    by_optimizer = Counter(step.optimizer for step in steps)
    return sum(step.rows > 0 for step in steps) or max(by_optimizer.values(), default=0)
