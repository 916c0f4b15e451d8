"""Let the ranks meet wherever a sharded model communicates, and help a rank that calls it alone.

A sharded model is whole only while all ranks take part. A script that saves or evaluates on rank 0 alone
(`if rd.is_main_process():`) does not know that. So before each forward pass, each `state_dict()` and each collective of
the runtime the ranks tell each other what they are about to do: a few numbers over the control group. Where all want
the same they do it. Where one wants a state or an evaluation that the others do not, these take part in it, and then
come back to their own call. Between two such places no rank can train, so what they give is of the same moment; the
numbers of optimizer steps, and what these changed, are compared too.
"""

from __future__ import annotations

import os
import sys
import traceback
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple
from zlib import crc32

import torch
import torch.distributed as dist

from ...failure.collective_calls import PACKAGE, before_collectives
from ...failure.deadlock import INSTALLED
from ...process.process_group import control_group, get_world_size

TRAINING, EVALUATION, WHOLE, STATE, OTHER = range(5)
HELPED = (EVALUATION, WHOLE, STATE)

_subjects: dict[int, Subject] = {}
_changes = [0, 0]  # optimizer steps and loaded states, and a checksum of what the last step used


class Arrival(NamedTuple):
    """What a rank is about to do, in numbers that all ranks can compare."""

    kind: int
    subject: int  # the number of a model or of an optimizer
    call: int  # a checksum of what must be equal for two calls to be the same one
    changes: int
    facts: int


@dataclass
class Subject:
    """A model or an optimizer, and what this rank does with it where another one alone arrives for it, by kind."""

    reference: weakref.ref[Any]
    helpers: Mapping[int, Callable[[Any], None]]
    # The script may have dropped it here, as at the end of a function, where another rank is yet to save it.
    kept: Any = None


def offer(number: int, subject: Any, helpers: Mapping[int, Callable[[Any], None]]) -> None:
    """Let this rank run `helpers[kind](subject)` where another one alone arrives for the subject of this number."""
    known = _subjects.get(number)
    if known is None or known.reference() is not subject:
        _subjects[number] = Subject(weakref.ref(subject), helpers, subject)


def _release() -> None:
    """Drop the models and optimizers that the script has dropped, on a rank and on all others."""
    for subject in _subjects.values():
        subject.kept = None
    for number in [number for number, subject in _subjects.items() if subject.reference() is None]:
        del _subjects[number]
    for subject in _subjects.values():
        subject.kept = subject.reference()


def note_change(facts: str = "") -> None:
    """Count a change of sharded weights or states, which every rank must make; `facts` must be equal on all ranks."""
    _changes[:] = [_changes[0] + 1, crc32(facts.encode())]


def script_line() -> str:
    """Return FILE:LINE of the script that called into the runtime."""
    frames = [frame for frame, _ in traceback.walk_stack(sys._getframe(1))]
    own = next((frame for frame in frames if not _is_of_library(frame)), frames[-1])
    return f"{os.path.basename(own.f_code.co_filename)}:{own.f_lineno}"


def _is_of_library(frame: FrameType) -> bool:
    module = frame.f_globals.get("__name__", "")
    return f"{module}.".startswith(f"{PACKAGE}.") or frame.f_code.co_filename.startswith(INSTALLED)


def arrive(kind: int, subject: int, what: str) -> bool:
    """Wait until all ranks are here for the same; return False where the others only help. `what` is for people.

    Collective: every rank, at this call or at another arrival. Raises RuntimeError on all of them where they cannot
    come together.
    """
    line = script_line()
    call = f"{what} {line}" if kind == STATE else what if kind == OTHER else ""
    own = Arrival(kind, subject, crc32(call.encode()), *_changes)
    while True:
        found = _of_all_ranks(own)
        if all(one == own for one in found):
            _release()
            return True
        leader = next((one for one in found if one.kind in HELPED), None)
        if leader is None or any(one[3:] != own[3:] for one in found):
            raise _error_of_all(f"{what} at {line}", own)
        if leader == own:
            return False
        helped = _subjects[leader.subject]
        helped.helpers[leader.kind](helped.reference())


def _of_all_ranks(own: Arrival) -> list[Arrival]:
    group = control_group()
    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    tensor = torch.tensor(own, device=device)
    found = [torch.empty_like(tensor) for _ in range(get_world_size())]
    dist.all_gather(found, tensor, group=group)
    return [Arrival(*one.tolist()) for one in found]


def _error_of_all(place: str, own: Arrival) -> RuntimeError:
    """Return an error that says on every rank where the others are. Collective: every rank."""
    texts: list[Any] = [None] * get_world_size()
    dist.all_gather_object(texts, (place, *own[3:]), group=control_group())
    places = "; ".join(f"rank {rank}: {text[0]}" for rank, text in enumerate(texts))
    changes, facts = ({text[number] for text in texts} for number in (1, 2))
    if len(changes) > 1:
        steps = ", ".join(str(text[1]) for text in texts)
        reason = f"they have made different numbers of optimizer steps and loads ({steps}); save before or after a step"
    elif len(facts) > 1:
        reason = (
            "in the last optimizer step they used other parameters or another learning rate; where only some ranks use "
            "a part of the model, train with RETROFIT_STRATEGY=ddp"
        )
    else:
        reason = (
            "every rank must make these calls: take what only one makes out of `if rd.is_main_process():`, or train "
            "with RETROFIT_STRATEGY=ddp"
        )
    return RuntimeError(f"RETROFIT_STRATEGY=fsdp: the ranks are at different places ({places}), and {reason}")


def _before_collective(name: str) -> None:
    arrive(OTHER, -1, name)


def follow_collectives() -> None:
    """From now on let every collective of the runtime be a place where ranks meet."""
    if _before_collective not in before_collectives:
        before_collectives.append(_before_collective)
