"""Files that one rank reads while another one writes them: nothing makes it wait for the end of that."""

from __future__ import annotations

from dataclasses import dataclass, field

from retrofit.verify.checks.finding import Finding
from retrofit.verify.evidence import RankTrace, Run
from retrofit.verify.trace.events import CollectiveCall, Event, FileChange, FileRead, FileSave
from retrofit.verify.verdict import count

from .paths import is_temporary


@dataclass
class _Files:
    """What a rank wrote and read, each with the collective calls that it had made before."""

    calls: list[str] = field(default_factory=list)
    written: set[tuple[str, int]] = field(default_factory=set)
    read: list[tuple[FileRead, int]] = field(default_factory=list)


def early_read_fault(run: Run) -> Finding | None:
    """Return the first file that a rank reads after the same collective calls after which another rank writes it.

    Each collective call that both make later would order the two. Ranks that wait by themselves, for a lock or asleep,
    are not judged.
    """
    ranks = [_files_of(rank) for rank in run.ranks]
    for reader, ours in enumerate(ranks):
        own = {path for path, _ in ours.written}
        for event, number in ours.read:
            for writer, theirs in enumerate(ranks):
                is_early = (event.path, number) in theirs.written and event.path not in own
                if writer == reader or not is_early or ours.calls[:number] != theirs.calls[:number]:
                    continue
                summary = f"rank {reader} reads {event.path} without waiting for rank {writer}, which writes it"
                value = (
                    f"both after {count(number, 'collective call')}: it may find no file, the old one or half of one"
                )
                return Finding(summary, "RF508", max(event.step - 1, 0), value, place=event.where)
    return None


def _files_of(rank: RankTrace) -> _Files:
    found = _Files()
    for event in rank.events:
        if isinstance(event, CollectiveCall):
            found.calls.append(event.op)
        elif isinstance(event, FileRead) and not event.waited:
            found.read.append((event, len(found.calls)))
        elif _is_write(event):
            assert isinstance(event, (FileSave, FileChange))
            found.written.add((event.path, len(found.calls)))
    return found


def _is_write(event: Event) -> bool:
    if isinstance(event, FileChange) and event.op not in ("write", "rename"):
        return False
    return isinstance(event, (FileSave, FileChange)) and not is_temporary(event.path)
