"""`retrofit plan`: predict what several GPUs would gain, before they are used."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

from retrofit.packages.installation import missing_packages

DESCRIPTION = """\
Run a training script for some steps on one process, measure or take the link between GPUs, and predict for each number
of GPUs and each strategy: the time of a step with an interval, the speed-up, and the memory of a GPU. Recommends one
command line. The script runs in a copy of its folder; it may be converted already or not.
"""
PACKAGES = ("torch", "rich", "matplotlib")
DONE, CANNOT, USAGE = 0, 1, 2
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        "plan", help="predict the speed-up and the memory on several GPUs", description=DESCRIPTION,
        usage="retrofit plan [options] SCRIPT -- [ARGUMENTS OF THE SCRIPT]",
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("script", type=Path, help="the training script, converted or not")
    parser.add_argument(
        "--gpus", type=_gpus, default=(2, 4, 8), metavar="N,N", help="numbers of GPUs, at least 2 (default: 2,4,8)"
    )
    parser.add_argument(
        "--link", default="measured", metavar="LINK",
        help="between the GPUs of a machine: measured (default), nvlink, pcie5, pcie4, pcie3, 400gbe, 100gbe, 25gbe, "
        "10gbe, 1gbe, 100mbit, a file of `python -m retrofit.plan.link`, or ALPHA,BETA (s per hop, s per byte)",
    )  # fmt: skip
    parser.add_argument(
        "--between",
        metavar="LINK",
        help="between machines, where there are more GPUs than --per-machine (default: --link)",
    )
    parser.add_argument("--per-machine", type=int, default=8, metavar="N", help="GPUs of a machine (default: 8)")
    parser.add_argument(
        "--gpu-memory", type=_bytes, metavar="SIZE", help="of a GPU, such as 24GiB (default: that of this machine's)"
    )
    parser.add_argument("--price", type=float, metavar="P", help="of a GPU for an hour: adds the cost of an epoch")
    parser.add_argument(
        "--batch-flag", metavar="NAME",
        help="the script's flag of the batch size: it is divided by the number of GPUs, so that the batch of a step "
        "stays (default: each GPU has the batch of one process)",
    )  # fmt: skip
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="steps to measure (default: 20, at least 8)")
    parser.add_argument("--project", type=Path, metavar="DIR", help="the folder to copy (default: the script's)")
    parser.add_argument(
        "--plot", default="plan.png", metavar="FILE", help="picture of the speed-up; '' = none (default: plan.png)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the plan for programs, in seconds and bytes")
    parser.add_argument(
        "--after", action="store_true", help="run what is recommended and compare it with the prediction"
    )
    parser.add_argument("--time-limit", type=float, default=600.0, metavar="S", help="seconds per run (default: 600)")
    return parser


def run(args: argparse.Namespace) -> int:
    """Return 0 when the plan was made, 1 when the script or the link cannot be measured, 2 for wrong usage."""
    wrong = _wrong_usage(args) or missing_packages(PACKAGES, "verify")
    if wrong:
        print(f"retrofit plan: error: {wrong}", file=sys.stderr)
        return USAGE
    from retrofit.plan.after import CannotRun, run_recommended
    from retrofit.plan.link.measure import NoLink
    from retrofit.plan.making import Wanted, devices, is_converted, made
    from retrofit.plan.report.card import card
    from retrofit.plan.report.picture import draw
    from retrofit.plan.report.terminal import print_plan
    from retrofit.why.analysis.picture import TooFewSteps
    from retrofit.why.run import ScriptFailed, Start

    script = args.script.resolve()
    project = (args.project or args.script.parent).resolve()
    start = Start(script, project, args.arguments, args.steps, args.time_limit)
    converted = is_converted(script)
    wanted = Wanted(
        start, args.gpus, args.link, args.between, args.per_machine, args.gpu_memory, args.price, args.batch_flag,
        converted,
    )  # fmt: skip
    try:
        plan = made(wanted, _say)
        print_plan(plan, str(args.script), args.arguments, converted)
        if args.json:
            content = card(plan, str(args.script), args.arguments, converted)
            args.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        if args.plot:
            draw(plan, Path(args.plot))
            print(f"picture of the speed-up: {args.plot}")
        if args.after:
            _say("the recommended training ...")
            print(run_recommended(plan, start, devices()[1]).line)
    except ValueError as error:
        print(f"retrofit plan: error: {error}", file=sys.stderr)
        return USAGE
    except (ScriptFailed, TooFewSteps, NoLink, CannotRun, OSError) as error:
        print(f"retrofit plan: error: {error}", file=sys.stderr)
        return CANNOT
    return DONE


def _wrong_usage(args: argparse.Namespace) -> str | None:
    if not args.script.is_file():
        return f"there is no file {args.script}"
    if args.steps < 8:
        return f"--steps {args.steps}: at least 8"
    if args.per_machine < 1:
        return f"--per-machine {args.per_machine}: at least 1"
    if args.price is not None and args.price < 0:
        return f"--price {args.price}: not below 0"
    project = (args.project or args.script.parent).resolve()
    if project not in args.script.resolve().parents:
        return f"--project {args.project}: {args.script} is not in it"
    return None


def _gpus(text: str) -> tuple[int, ...]:
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < 2:
        raise argparse.ArgumentTypeError(f"{text}: numbers of GPUs from 2 on, such as 2,4,8")
    return tuple(found)


def _bytes(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", text.strip(), re.IGNORECASE)
    if not found or not float(found[1]):
        raise argparse.ArgumentTypeError(f"{text}: a size such as 24GiB or 500MiB")
    return float(found[1]) * UNITS[found[2].upper()]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
