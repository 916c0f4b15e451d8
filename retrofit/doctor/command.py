"""`retrofit doctor`: arguments and exit status."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from retrofit.packages.installation import missing_packages

PACKAGES = ("psutil", "rich")  # of the extra [doctor]; torch is examined, and may be missing
DESCRIPTION = """\
Find what in this machine would stop or slow down a training on several GPUs: GPUs, driver and torch, peer access,
shared memory, limits, CPU cores, ports, names and network interfaces, variables left in the environment; and let real
processes add up tensors with gloo, and with nccl if there are GPUs. Nothing is changed.

exit status: 0 no FAIL (there may be warnings), 1 at least one FAIL, 2 wrong usage
"""
EPILOG = """\
examples:
  retrofit doctor                              one process per GPU (2 without GPUs), 4 workers each
  retrofit doctor --nproc 8 --workers 12       check for a larger training
  retrofit doctor --nnodes 2                   on each of two machines, with MASTER_ADDR and MASTER_PORT as in training
  retrofit doctor --json > doctor.json         for a program, or for a bug report
  retrofit doctor --no-allreduce               the quick part: starts no processes that talk to each other
"""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add the `doctor` command to `subparsers` and return its parser."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "doctor",
        help="find what in this machine would stop or slow down a training on several GPUs",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--nproc",
        type=_number(1, 1024),
        metavar="N",
        help="processes on this machine (default: one per GPU, at least 2)",
    )
    add(
        "--workers",
        type=_number(0, 1024),
        default=4,
        metavar="W",
        help="DataLoader workers of each process; 0 = none (default: %(default)s)",
    )
    add("--nnodes", type=_number(1, 100_000), default=1, metavar="N", help="machines (default: %(default)s)")
    add(
        "--port",
        type=_number(1, 65535),
        metavar="P",
        help="port that rank 0 will listen on (default: MASTER_PORT, else 29500)",
    )
    add("--json", action="store_true", help="print a JSON document instead of the table")
    add("--no-allreduce", action="store_true", help="leave out the all-reduce test, which takes about 10 seconds")
    add(
        "--deadline",
        type=_number(5, 3600),
        default=60,
        metavar="S",
        help="seconds after which an all-reduce test counts as hung (default: %(default)s)",
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Examine this machine, print what was found, and return the exit status."""
    missing = missing_packages(PACKAGES, "doctor")
    if missing:
        _say(f"error: {missing}")
        return 2
    from retrofit.doctor.examine import Request, examine
    from retrofit.doctor.report import has_failed, print_report, report_as_json

    request = Request(args.nproc, args.workers, args.nnodes, args.port, not args.no_allreduce, args.deadline)
    try:
        found = examine(request, os.environ, _say)
    except KeyboardInterrupt:
        _say("interrupted")
        return 130
    if args.json:
        print(report_as_json(found.plan, found.findings, found.outcomes))
    else:
        print_report(found.plan, found.findings)
    return 1 if has_failed(found.findings) else 0


def _say(text: str) -> None:
    print(f"retrofit doctor: {text}", file=sys.stderr, flush=True)


def _number(least: int, most: int) -> Any:
    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"a whole number from {least} to {most}, not {text!r}")
        return number

    return parse
