"""`retrofit convert --prove`: its options, the runs of a conversion that is not written yet, and what follows them."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrofit.analysis.files.source import printable
from retrofit.convert.assumptions import Assumption, lines_after
from retrofit.packages.installation import missing_packages
from retrofit.rules.edits.rewrite import ChangedFile
from retrofit.verify.command import PACKAGES, add_judge_options, add_run_options

if TYPE_CHECKING:
    from retrofit.analysis.files.start import Start
    from retrofit.convert.plan import Conversion
    from retrofit.verify.verdict import Report

GROUP = "runs of --prove"
SCRIPT_FAILS = "RF001"  # the cause of the check that every run comes to its end
COSTS_TIME = "communication"  # the check whose fault does not change what is trained: averaging in every micro batch
FIGURES = frozenset({"metrics", "logs"})  # checks of what is printed and logged
ONLY_FIGURES = (
    "it trains the same, and reports other figures (those of one rank are listed with their lines); reduce them by "
    "hand after `--write`, or take them as they are: {}"
)
UNPROVEN = "`--write` in place of --prove writes it without a proof"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the runs to the parser of `convert`."""
    group = parser.add_argument_group(GROUP)
    add_run_options(group)
    add_judge_options(group)
    group.add_argument("--html", default="", metavar="FILE", help="write a page with the curves there (default: none)")
    parser.set_defaults(json=False)


def useless_options(parser: argparse.ArgumentParser, args: argparse.Namespace) -> list[str]:
    """Return the options that were given and that only --prove has a use for, where that was not given."""
    groups = [group for group in parser._action_groups if group.title == GROUP]
    options = [action for group in groups for action in group._group_actions]
    return [] if args.prove else [o.option_strings[-1] for o in options if getattr(args, o.dest) != o.default]


def prove(args: argparse.Namespace, start: Start, conversion: Conversion, files: dict[Path, bytes]) -> int:
    """Run a script before and after its conversion, in copies of its folder; say what follows.

    Returns 0 where both are the same training, so that `files` may be written, or the exit status of `verify`. Raises
    ValueError for what cannot be run.
    """
    missing = missing_packages(PACKAGES, "verify")
    if missing:
        raise ValueError(f"--prove: {missing}")
    from retrofit.verify.command import judge, make_plan
    from retrofit.verify.processes.launch import signals_raise
    from retrofit.verify.verdict import exit_status

    args.accept = [*args.accept, COSTS_TIME]
    watched = watched_lines(start, conversion)
    search_path = os.pathsep.join([*start.folders, *filter(None, [os.environ.get("PYTHONPATH")])])
    more: dict[str, Any] = {
        "original": start.entry,
        "module": start.module or "",
        "start": _place_in(start.root),
        "changes": {os.path.relpath(path, start.root): data for path, data in files.items()},
        "watched": _by_file(watched),
        "environ": {"PYTHONPATH": search_path} if start.folders else {},
    }
    with signals_raise():
        plan = make_plan(args, start.root, start.entry, **more)
        try:
            report = judge(plan, args)
        finally:
            if not args.keep:
                shutil.rmtree(plan.folder, ignore_errors=True)
    status = exit_status(report.verdicts)
    if status != 0:
        _say_why_not(start, conversion, report)
        return status
    _require_unchanged(conversion)
    conversion.unproven = [assumption for assumption, lines in watched.items() if lines.isdisjoint(report.lines_run)]
    for assumption in watched:
        how = "not proven, the runs did not come to it" if assumption in conversion.unproven else "shown by the runs"
        print(printable(f"assumed, and {how}: {assumption}"))
    return 0


def _place_in(root: Path) -> str:
    """Return the current folder as seen from the root of the project, where the runs start; "" where it is outside."""
    place = os.path.relpath(os.path.realpath(os.curdir), os.path.realpath(root))
    return "" if place == os.curdir or place.startswith(os.pardir) else place


def watched_lines(start: Start, conversion: Conversion) -> dict[Assumption, set[tuple[str, int]]]:
    """Return the lines of the converted text, by file and number, that show whether an assumption holds."""
    files = conversion.files
    paths = {one: os.path.relpath(os.path.realpath(one.source.path), start.root) for one in conversion.assumptions}
    return {one: {(path, line) for line in lines_after(files, one)} for one, path in paths.items()}


def _by_file(watched: Mapping[Assumption, set[tuple[str, int]]]) -> dict[str, list[int]]:
    lines: dict[str, list[int]] = defaultdict(list)
    for path, line in sorted(set().union(*watched.values())):
        lines[path].append(line)
    return dict(lines)


def _say_why_not(start: Start, conversion: Conversion, report: Report) -> None:
    from retrofit.verify.verdict import FAIL, overall_status

    from .responsible import responsible

    sys.stdout.flush()
    causes = {verdict.cause for verdict in report.verdicts if verdict.status == FAIL}
    if causes == {SCRIPT_FAILS}:
        why = "as it is, without the conversion, it fails with these arguments, so the runs show nothing"
        print(f"{printable(start.script)} was not written: {why}; {UNPROVEN}")
        return
    if overall_status(report.verdicts) == FAIL:
        for line in [*_refuted(conversion, report), *responsible(conversion, report.verdicts)]:
            print(printable(line))
        failed = {verdict.check for verdict in report.verdicts if verdict.status == FAIL}
        why = ONLY_FIGURES.format(" ".join(f"--accept {check}" for check in sorted(failed)))
        why = why if failed <= FIGURES else "the converted script trains something else"
        print(f"{printable(start.script)} was not written: {why}")
        return
    print(f"{printable(start.script)} was not written: not all that a proof needs was compared; {UNPROVEN}")


def _refuted(conversion: Conversion, report: Report) -> Iterator[str]:
    """Yield the assumptions that a failed check speaks against, and those that it may."""
    from retrofit.verify.verdict import FAIL

    causes = {verdict.cause for verdict in report.verdicts if verdict.status == FAIL}
    for assumption in conversion.assumptions:
        verb = "does" if assumption.codes & causes else "may"
        yield f"assumed, and it {verb} not hold: {assumption}"


def _require_unchanged(conversion: Conversion) -> None:
    """Raise ValueError where a file of the project is not what was read, converted and run."""
    for source in conversion.project.sources:
        if source.path.read_bytes() != ChangedFile(source, source.text).data:
            raise ValueError(f"{source.name} was changed during the runs; nothing was written, start again")
