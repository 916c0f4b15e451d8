"""`retrofit convert`: shows what it would change, and changes it with --write."""

from __future__ import annotations

import argparse
import difflib
import io
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .plan import Conversion

EPILOG = """\
examples:
  retrofit convert train.py             the changes as a diff, nothing is written
  retrofit convert train.py --write     write them, with the runtime and two launch scripts
  retrofit convert train.py --undo      take the last conversion back

exit status: 0 converted (or nothing to do), 1 cannot be converted correctly, 2 wrong usage
"""


def add_parser(commands: Any) -> None:
    """Add the command to `commands` (of argparse's add_subparsers)."""
    parser = commands.add_parser(
        "convert",
        help="turn a single-GPU training script into one for many GPUs",
        description="Change SCRIPT and the modules that it imports so that it trains on many GPUs. The code is read, "
        "never run.",
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
    add("--root", metavar="DIR", help="the folder that the script is started from (default: the script's)")
    add("--write", action="store_true", help="write the changes (default: show them)")
    add("--undo", action="store_true", help="restore what the last --write changed")
    add("--force", action="store_true", help="write into a git work tree with uncommitted changes too")
    add("--no-vendor", action="store_true", help="import the installed retrofit instead of a copy beside the script")


def run(args: argparse.Namespace) -> int:
    """Carry out the command and return its exit status."""
    from retrofit.project import SourceError
    from retrofit.project.garbage import no_garbage_search

    from .write import WriteError

    try:
        with no_garbage_search():
            return _convert(args)
    except (SourceError, WriteError, ValueError, OSError) as error:
        print(f"retrofit convert: error: {error}", file=sys.stderr)
        return 2


def _convert(args: argparse.Namespace) -> int:
    from retrofit.project import read_project
    from retrofit.project.entry import find_entry

    from .plan import is_converted, plan_conversion
    from .write import undo

    given = Path(args.path)
    root = Path(args.root or (given if given.is_dir() else given.parent)).resolve()
    if args.undo:
        for path in undo(root):
            print(f"restored {path.relative_to(root)}")
        return 0
    entry = find_entry(given)
    project = read_project(entry, root)
    if is_converted(project):
        print(f"{entry} uses the runtime already; nothing to do")
        return 0
    conversion = plan_conversion(project)
    reasons = [f"{finding.place}: {finding.code} {finding.refusal}" for finding in conversion.refusals]
    reasons += project.modules.unreadable.values()
    if reasons:
        print("\n".join([*reasons, f"{entry} cannot be converted; nothing was written"]), file=sys.stderr)
        return 1
    _show(conversion)
    if not args.write:
        print("nothing was written; --write writes it", file=sys.stderr)
        return 0
    _write(args, root, conversion)
    return 0


def _show(conversion: Conversion) -> None:
    """Print the diff on the standard output, and on the other one why each place is changed, by rule."""
    from retrofit.rules import RULES

    for file in conversion.files:
        sys.stdout.write(_diff(file.source.text, file.text, file.source.name))
    sys.stdout.flush()
    for code, rule in RULES.items():
        found = [finding for finding in conversion.findings if finding.code == code]
        changed = [str(finding.place) for finding in found if finding.edits]
        if changed:
            print(f"{code} {rule.NAME}: {', '.join(changed)}", file=sys.stderr)
        for finding in found:
            if not finding.edits:
                print(f"{finding.place}: {code} {finding.message}; left to you: {finding.help}", file=sys.stderr)
    for evaluation in conversion.project.evaluations:
        if evaluation.reason:
            place = evaluation.scope.source.place(evaluation.loop)
            print(f"{place}: every process runs all of this evaluation: {evaluation.reason}", file=sys.stderr)


def _write(args: argparse.Namespace, root: Path, conversion: Conversion) -> None:
    from .additions import additions
    from .write import write_all

    if not args.force and _is_dirty(root):
        raise ValueError(f"{root} has uncommitted changes; commit them first, or add --force")
    files = {file.path: file.data for file in conversion.files}
    files.update(additions(root, conversion.project.entry.path, vendor=not args.no_vendor))
    write_all(root, files)
    given = ["--root", args.root] if args.root else []
    again = shlex.join(["retrofit", "convert", args.path, *given, "--undo"])
    print(f"wrote {len(files)} files, read MULTI_GPU.md; `{again}` takes it back", file=sys.stderr)


def _diff(before: str, after: str, name: str) -> str:
    # A form feed ends no line, though str.splitlines says so.
    old, new = (list(io.StringIO(text, newline="")) for text in (before, after))
    lines = difflib.unified_diff(old, new, f"a/{name}", f"b/{name}", n=2)
    return "".join(line if line.endswith(("\n", "\r")) else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _is_dirty(root: Path) -> bool:
    """Return whether the folder lies in a git work tree with uncommitted changes to files that git knows."""
    command = ["git", "status", "--porcelain", "--untracked-files=no", "."]
    try:
        result = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    except OSError:
        return False
    return result.returncode == 0 and bool(result.stdout.strip())
