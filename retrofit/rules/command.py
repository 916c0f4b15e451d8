"""`retrofit rules`: what a code means."""

from __future__ import annotations

import argparse
import sys
from typing import Any


def add_parser(commands: Any) -> None:
    """Add the command to `commands` (of argparse's add_subparsers)."""
    parser = commands.add_parser(
        "rules",
        help="explain the codes of findings",
        description="List all rules, or explain one: why it matters and what to do. Of a worked example, show it.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "code",
        nargs="?",
        metavar="CODE|EXAMPLE",
        help="a rule's code, RF103, or the name of an example (default: list all)",
    )


def run(args: argparse.Namespace) -> int:
    """Carry out the command and return its exit status."""
    from .catalog import CATALOG
    from .documentation import explain
    from .refusals.worked_examples import EXAMPLES, show_example

    if args.code is None:
        for code in sorted(CATALOG):
            print(f"{code}  {CATALOG[code].name}")
        print(f"worked examples: {', '.join(EXAMPLES)}")
        return 0
    if args.code in EXAMPLES:
        print(show_example(args.code), end="")
        return 0
    code = args.code.upper()
    if code not in CATALOG:
        print(f"retrofit rules: error: no rule {args.code}; there are {', '.join(sorted(CATALOG))}", file=sys.stderr)
        return 2
    print(explain(code), end="")
    return 0
