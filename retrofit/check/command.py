"""`retrofit check`: what has to change in a training script for several GPUs. `retrofit rules` explains the codes."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

EPILOG = """\
examples:
  retrofit check                                the script in this folder that trains
  retrofit check train.py
  retrofit check -m tools.train                  a script that is started as python -m tools.train
  retrofit check train.py --format github        annotations in a workflow
  retrofit check train.py --format sarif > check.sarif

A comment `# retrofit: ignore[RF103]` on its line suppresses a finding.

exit status: 0 nothing found, 1 findings, 2 wrong usage
"""
FORMAT_NAMES = ("text", "json", "github", "sarif")


def add_parser(commands: Any) -> None:
    """Add the command to `commands` (of argparse's add_subparsers)."""
    parser = commands.add_parser(
        "check",
        help="list what has to change in a training script for several GPUs",
        description="Read SCRIPT and the modules that it imports, without running them, and list the hazards.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "path",
        metavar="SCRIPT",
        nargs="?",
        default=".",
        help="the training script, or its folder (default: this folder)",
    )
    add("-m", "--module", metavar="MODULE", help="the script as in `python -m MODULE`, in this folder or in --root")
    add("--root", metavar="DIR", help="the folder that the script is started from (default: found by its imports)")
    add("--format", choices=FORMAT_NAMES, default="text", help="what is printed (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Carry out the command and return its exit status."""
    from retrofit.analysis.deep_stack import TooDeepError, with_deep_stack
    from retrofit.analysis.files.source import printable
    from retrofit.analysis.garbage import no_garbage_search

    try:
        with no_garbage_search():
            return with_deep_stack(lambda: _check(args))
    except TooDeepError as error:
        print(f"retrofit check: error: {printable(str(error))}", file=sys.stderr)
        return 2


def _check(args: argparse.Namespace) -> int:
    from retrofit.analysis.files.missing_modules import missing_modules
    from retrofit.analysis.files.source import printable
    from retrofit.rules.registry import find_hazards
    from retrofit.training import SourceError
    from retrofit.training.distributed.frameworks import find_framework
    from retrofit.training.launch.entry import open_project

    from .formats import FORMATS
    from .ignores import without_ignored

    try:
        project, start = open_project(args.path, args.module, args.root)
    except (SourceError, ValueError) as error:
        print(f"retrofit check: error: {printable(str(error))}", file=sys.stderr)
        return 2
    path = Path(args.path)
    named = ["-m", args.module] if args.module else [str(path / start.entry.name if path.is_dir() else path)]
    for reason in project.modules.unreadable.values():
        print(f"retrofit check: warning: left out: {printable(reason)}", file=sys.stderr)
    for missing in missing_modules(project.modules):
        print(f"retrofit check: warning: {printable(missing)}", file=sys.stderr)
    framework = find_framework(project.analysis)
    if framework is not None:
        place = framework.scope.source.place(framework.call)
        print(f"retrofit check: {place}: {printable(framework.advice(shlex.join(named)))}", file=sys.stderr)
    for unread in project.modules.not_read:
        print(f"retrofit check: warning: not read: {printable(unread)}", file=sys.stderr)
    findings = without_ignored(sorted(find_hazards(project), key=lambda finding: finding.place), project.sources)
    sys.stdout.write(FORMATS[args.format](findings))
    if args.format == "text":
        number, shown = len(findings), printable(" ".join(named))
        print(f"{number} finding{'' if number == 1 else 's'} in {shown}" if number else f"nothing found in {shown}")
    return int(bool(findings))
