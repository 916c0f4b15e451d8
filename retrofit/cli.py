"""The command line: `retrofit check | convert | rules | verify | plan | why | doctor`."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence

from retrofit import __version__
from retrofit.check import command as check
from retrofit.convert import command as convert
from retrofit.doctor import command as doctor
from retrofit.packages import import_path
from retrofit.plan import command as plan
from retrofit.prove import command as prove
from retrofit.prove.repair import command as repair
from retrofit.rules import command as rules
from retrofit.verify import command as verify
from retrofit.why import command as why

COMMANDS = {
    "check": check, "convert": convert, "rules": rules, "verify": verify, "plan": plan, "why": why, "doctor": doctor,
}  # fmt: skip
USING_PACKAGES = {"verify", "plan", "why", "doctor"}
RUNNING = {"verify", "plan", "why"}  # the user's script
READING = {"check", "convert", "rules"}  # what only reads scripts, until all is known that it writes


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 clean, 1 findings, 2 wrong usage. Without a command print help."""
    parser = argparse.ArgumentParser(
        prog="retrofit",
        description="Take a single-GPU PyTorch training project to many GPUs and prove that it is the same training.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"retrofit {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    parsers = {name: module.add_parser(commands) for name, module in COMMANDS.items()}
    prove.add_options(parsers["convert"])
    repair.add_options(parsers["verify"])
    own, of_script = _split(sys.argv[1:] if argv is None else argv)
    args = parser.parse_args(own)
    if args.command is None:
        parser.print_help(sys.stderr)
        return 2
    proves = args.command == "convert" and args.prove
    if of_script and args.command not in RUNNING and not proves:
        parser.error(f"{args.command} runs no script, so there is nothing for -- {' '.join(of_script)}")
    args.arguments = of_script
    if args.command == "convert" and (useless := prove.useless_options(parsers["convert"], args)):
        parser.error(f"{', '.join(useless)}: only --prove runs the script")
    if args.command == "verify" and args.write and not args.fix:
        parser.error("--write: only --fix has something to write")
    if args.command in USING_PACKAGES or proves:
        import_path.add_packages()
    if isinstance(sys.stdout, io.TextIOWrapper):  # a path or a line of code may hold what the terminal cannot show
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        if args.command == "verify" and args.fix:
            return verify.run(args, repair.repair, repair.print_repair)
        return convert.run(args, prove.prove) if proves else COMMANDS[args.command].run(args)
    except Exception as error:
        if args.command not in READING:
            raise
        from retrofit.check import own_errors

        own_errors.report(args.command, error)
        return 2


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments before the first `--`, and those after it, which are for the user's script."""
    position = list(argv).index("--") if "--" in argv else len(argv)
    return list(argv[:position]), list(argv[position + 1 :])


if __name__ == "__main__":
    sys.exit(main())
