"""The script's start by a launcher: its local rank, port and process group."""

from __future__ import annotations

from retrofit.verify.checks.finding import Finding, fail_with, not_made, why_not
from retrofit.verify.checks.options import CheckOptions
from retrofit.verify.evidence import Run, Runs
from retrofit.verify.trace.events import LOCAL_RANK, GroupJoin, ParserUse, SpawnCall
from retrofit.verify.verdict import Verdict, not_applicable, passed


def launch(runs: Runs, options: CheckOptions) -> Verdict:
    """Check what the script takes from its launcher: the local rank, the port, the group."""
    check, title = "launch", "the script starts under every launcher"
    reason = not_made(runs, "many")
    if reason:
        return not_applicable(check, title, reason)
    many = runs["many"]
    parsers = _parsers(runs)
    groups = [event for rank in many.ranks for event in rank.of(GroupJoin)]
    is_launched = many.main.first(SpawnCall) is None
    fault = (_flag_fault(parsers) if is_launched else None) or _port_fault(groups) or _group_fault(many, groups)
    if fault is not None:
        return fail_with(check, title, fault)
    if not groups:
        return not_applicable(check, title, why_not(many, "no process group was created"))
    if groups[0].launcher_port is None:
        return passed(check, title, "the script starts its processes itself", _own_port_note(runs))
    known = [flag for flag in LOCAL_RANK if any(parser.accepts_local_rank.get(flag) for parser in parsers)]
    takes = f"takes {' and '.join(known)}" if known else "reads the environment"
    return passed(check, title, f"the script {takes} and meets at the launcher's port")


def _own_port_note(runs: Runs) -> str | None:
    """Return a note where the processes of every run meet at the same port."""
    ports = [{event.master_port for rank in run.ranks for event in rank.of(GroupJoin)} for run in runs.values()]
    fixed = set.intersection(*(own for own in ports if own)) - {None}
    if not fixed or sum(map(bool, ports)) < 2:
        return None
    return f"always at port {min(filter(None, fixed))}: two trainings on one machine would meet there (RF602)"


def _parsers(runs: Runs) -> list[ParserUse]:
    """Return the parsers of one process, without those that leave unknown arguments to others (--config and the like).

    A script that fails in its parser has left no trace of it at several processes, so any run will do.
    """
    for name in ("many", "one"):
        run = runs.get(name)
        for rank in run.ranks if run else []:
            if rank.of(ParserUse):
                return [event for event in rank.of(ParserUse) if event.refuses_unknown]
    return []


def _flag_fault(parsers: list[ParserUse]) -> Finding | None:
    for parser in parsers:
        accepted = [flag for flag in LOCAL_RANK if parser.accepts_local_rank.get(flag)]
        if len(accepted) == 1:
            refused = next(flag for flag in LOCAL_RANK if flag not in accepted)
            return Finding(f"the parser takes {accepted[0]} and refuses {refused}", "RF601")
    return None


def _port_fault(groups: list[GroupJoin]) -> Finding | None:
    for event in groups:
        own, given = event.master_port, event.launcher_port
        if own is not None and given is not None and own != given:
            summary = "the process group meets at another port than the launcher's"
            return Finding(summary, "RF602", value=f"port {own}, the launcher gave {given}")
    return None


def _group_fault(many: Run, groups: list[GroupJoin]) -> Finding | None:
    if many.world_size == 1:
        return None
    if not groups and many.finished:
        summary = f"no process group was created: {many.world_size} processes train on their own"
        return Finding(summary, note="`retrofit convert` makes the changes that a script for one process needs")
    for event in groups:
        if event.world_size not in (None, many.world_size):
            value = f"{event.world_size} of {many.world_size} processes"
            return Finding("the process group does not hold all processes", value=value)
    return None
