"""Arguments that restart the script from its checkpoint: those given, or found in its own parser."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from retrofit.verify.checks.checkpoint.first_epoch import steps_of_first_epoch
from retrofit.verify.trace.events import FileSave, ParserOption, ParserUse

from .evidence import Run

# In the order in which they are looked for.
RESUME_FLAGS = ("--resume", "--resume_from", "--resume-from", "--resume_path", "--resume-path", "--continue_from")


@dataclass(frozen=True)
class Restart:
    """The arguments that continue a run, and where it continues."""

    arguments: list[str]
    checkpoint: str
    steps_done: int
    batches_done: int  # with a step, which is less than that where several optimizers step on one batch
    epochs_done: int = 1  # 0 where it was written before the end of the first epoch


def plan_restart(given: Sequence[str] | None, many: Run, script: Run, snapshot: Path) -> Restart | str:
    """Return how to restart from `snapshot`, the project as `many` left it after its first epoch; else why not.

    `script` is a run of the script to restart: its parser says how. `given` may hold {checkpoint}, which becomes the
    path of the checkpoint, relative to the project.
    """
    if not snapshot.is_dir():
        return "there is no second training epoch to resume into; run at least two (--epochs 2)"
    checkpoint = _checkpoint(many, snapshot)
    if checkpoint is None:
        return "no checkpoint was written with torch.save in the first epoch"
    arguments = _arguments(given, script, checkpoint)
    if arguments is None:
        return "the script has no --resume; name its arguments with --resume-args"
    steps_done = _steps_in(checkpoint, many)
    is_whole_epoch = steps_done == steps_of_first_epoch(many.main)
    return Restart(arguments, checkpoint, steps_done, _num_batches(many, steps_done), int(is_whole_epoch))


def _checkpoint(many: Run, snapshot: Path) -> str | None:
    """Return the fullest checkpoint that the snapshot holds, the last written of them."""
    best: tuple[int, str] | None = None
    for event in many.ranks[0].of(FileSave):
        if (snapshot / event.path).is_file() and (best is None or len(event.keys) >= best[0]):
            best = (len(event.keys), event.path)
    return best[1] if best else None


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


def _arguments(given: Sequence[str] | None, script: Run, checkpoint: str) -> list[str] | None:
    if given is not None:
        return [argument.replace("{checkpoint}", checkpoint) for argument in given]
    options = max((event.options for event in script.main.of(ParserUse)), key=len, default=[])
    for flag in RESUME_FLAGS:
        for option in options:
            if flag in option.flags:
                return [flag] if not option.takes_value else [flag, _value(option, checkpoint)]
    return None


def _value(option: ParserOption, checkpoint: str) -> str:
    return "auto" if "auto" in (option.choices or []) else checkpoint
