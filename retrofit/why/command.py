"""`retrofit why`: run a script for some steps, and say where the time goes."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path

from retrofit.packages.installation import missing_packages

DESCRIPTION = """\
Run a training script on several processes and on one for some steps, and say where the time goes: the speed-up that was
measured, what each part of a step takes and what of it is lost, the rank that the others wait for and the reason, and
what each remedy would save. The script runs in a copy of its folder.
"""
PACKAGES = ("torch", "rich", "matplotlib")
DONE, CANNOT, USAGE = 0, 1, 2


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        "why", help="say where the time of a training on several processes goes", description=DESCRIPTION,
        usage="retrofit why [options] SCRIPT -- [ARGUMENTS OF THE SCRIPT]",
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("script", type=Path, help="the training script, converted or written for torchrun")
    parser.add_argument("-n", "--nproc", type=int, default=2, metavar="N", help="processes (default: 2)")
    parser.add_argument(
        "--steps", type=int, default=40, metavar="N", help="optimizer steps of each run (default: 40, at least 12)"
    )
    parser.add_argument("--no-single", action="store_true", help="do not run one process: no speed-up, nothing lost")
    parser.add_argument("--project", type=Path, metavar="DIR", help="the folder to copy (default: the script's)")
    parser.add_argument(
        "--html", default="why.html", metavar="FILE", help="the page with the step; '' = none (default: why.html)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the card for programs, times in seconds")
    parser.add_argument("--time-limit", type=float, default=600.0, metavar="S", help="seconds per run (default: 600)")
    return parser


def run(args: argparse.Namespace) -> int:
    """Return 0 when the card was made, 1 when the script cannot be measured, 2 for wrong usage."""
    wrong = _wrong_usage(args) or missing_packages(PACKAGES, "verify")
    if wrong:
        print(f"retrofit why: error: {wrong}", file=sys.stderr)
        return USAGE
    from retrofit.verify.report.build import made_from
    from retrofit.why.analysis.picture import TooFewSteps, picture_of
    from retrofit.why.page import write_card
    from retrofit.why.report import card
    from retrofit.why.run import ScriptFailed, Start, recorded
    from retrofit.why.terminal import print_card

    script = args.script.resolve()
    project = (args.project or args.script.parent).resolve()
    start = Start(script, project, args.arguments, args.steps, args.time_limit)
    try:
        _say(f"{args.nproc} processes, {args.steps} steps ...")
        with recorded(start, args.nproc) as many:
            if args.no_single:
                picture = picture_of(many, None)
            else:
                _say(f"one process, {args.steps} steps ...")
                with recorded(start, 1) as single:
                    picture = picture_of(many, single)
    except (ScriptFailed, TooFewSteps) as error:
        print(f"retrofit why: error: {error}", file=sys.stderr)
        return CANNOT
    print_card(picture)
    try:
        if args.json:
            args.json.write_text(json.dumps(card(picture), indent=1) + "\n", encoding="utf-8")
        if args.html:
            command = shlex.join([args.script.name, *args.arguments])
            write_card(Path(args.html), picture, {"Script": command, **made_from(project)})
            print(f"the step of all ranks as it went: {args.html}")
    except OSError as error:
        print(f"retrofit why: error: {error}", file=sys.stderr)
        return CANNOT
    return DONE


def _wrong_usage(args: argparse.Namespace) -> str | None:
    if not args.script.is_file():
        return f"there is no file {args.script}"
    if args.nproc < 2:
        return f"-n {args.nproc}: at least 2 processes"
    if args.steps < 12:
        return f"--steps {args.steps}: at least 12, of which the first 3 are left out"
    project = (args.project or args.script.parent).resolve()
    if project not in args.script.resolve().parents:
        return f"--project {args.project}: {args.script} is not in it"
    return None


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
