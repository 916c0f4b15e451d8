"""`retrofit convert`: shows what it would change, and changes it with --write."""

from __future__ import annotations

import argparse
import difflib
import io
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrofit.installation import DISTRIBUTION, requirement

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
    add(
        "--no-vendor",
        action="store_true",
        help=f"import the runtime from the installed kit, which every machine that trains then needs (the distribution "
        f"{DISTRIBUTION}); default: a copy of the runtime next to the script",
    )


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
    except KeyboardInterrupt:
        print("retrofit convert: interrupted; no file is half-written", file=sys.stderr)
        return 130


def _convert(args: argparse.Namespace) -> int:
    from retrofit.project import read_project
    from retrofit.project.entry import find_entry

    from .plan import is_converted, plan_conversion
    from .write import real_places

    given = Path(args.path)
    root = Path(os.path.realpath(args.root or (given if given.is_dir() else Path(os.path.realpath(given)).parent)))
    if args.undo:
        return _undo(root, given)
    _recover(args, root)
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
    real_places(root, [file.path for file in conversion.files])
    _show(conversion)
    if not args.write:
        print("nothing was written; --write writes it", file=sys.stderr)
        return 0
    _write(args, root, conversion)
    return 0


def _undo(root: Path, given: Path) -> int:
    from .additions import again
    from .undo import undo

    undone = undo(root, None if given.is_dir() else Path(os.path.realpath(given)), again)
    for path in undone.restored:
        print(f"restored {path.relative_to(root)}")
    if undone.kept:
        print(f"kept {len(undone.kept)} files that the conversion of {', '.join(undone.needed_by)} needs")
    return 0


def _recover(args: argparse.Namespace, root: Path) -> None:
    """Take back a conversion that was interrupted, or say that this is to be done first."""
    from .additions import again
    from .undo import find_unfinished, recover

    script = find_unfinished(root) if root.is_dir() else None
    if script is None:
        return
    if not args.write:
        command = shlex.join(["retrofit", "convert", str(root / script)])
        raise ValueError(
            f"a conversion of {script} was interrupted; `{command} --undo` restores the files, --write converts again"
        )
    recover(root, again)
    print(f"an interrupted conversion of {script} was taken back", file=sys.stderr)


def _show(conversion: Conversion) -> None:
    """Print the diff on the standard output, and on the other one why each place is changed, by rule."""
    from retrofit.rules import RULES
    from retrofit.training.losses.optimized import rate_rules
    from retrofit.training.step_limits import step_limits

    from .listing import lines

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
    for rate, rule_of_rate in rate_rules(conversion.project):
        print(f"{rate}: {rule_of_rate}", file=sys.stderr)
    for limit in step_limits(conversion.project):
        print(f"{limit.place}: {limit.text}", file=sys.stderr)
    for unread in conversion.project.modules.not_read:
        print(f"not read, so nothing is changed there: {unread}", file=sys.stderr)
    for evaluation in conversion.project.evaluations:
        if evaluation.reason:
            place = evaluation.scope.source.place(evaluation.loop)
            print(f"{place}: every process runs all of this evaluation: {evaluation.reason}", file=sys.stderr)
    for line in lines(conversion.listed):
        print(line, file=sys.stderr)


def _write(args: argparse.Namespace, root: Path, conversion: Conversion) -> None:
    from retrofit.training.step_limits import step_limits

    from .additions import additions
    from .listing import steps
    from .plan import files_needed
    from .work_tree import has_uncommitted_changes
    from .write import real_places, write_all

    if not args.force and has_uncommitted_changes(root):
        raise ValueError(f"{root} has uncommitted changes; commit them first, or add --force")
    entry = conversion.project.entry.path
    texts = [source.text for source in conversion.project.sources]
    not_read = conversion.project.modules.not_read
    counted = steps(step_limits(conversion.project), conversion.files)
    files = additions(root, entry, not args.no_vendor, texts, not_read, conversion.listed, counted)
    users = [*files_needed(conversion), *conversion.files]
    places = real_places(root, [file.path for file in users])
    files.update(zip(places, (file.data for file in users)))
    number = write_all(root, files, entry)
    given = ["--root", args.root] if args.root else []
    again = shlex.join(["retrofit", "convert", args.path, *given, "--undo"])
    page = next(path.name for path in files if path.suffix == ".md")
    print(f"wrote {number} files, read {page}; `{again}` takes it back", file=sys.stderr)
    if args.no_vendor:
        install = shlex.join(["python", "-m", "pip", "install", requirement()])
        print(f"the runtime is not among them; on every machine that trains run `{install}`", file=sys.stderr)


def _diff(before: str, after: str, name: str) -> str:
    from retrofit.project.source import printable

    # A form feed ends no line, though str.splitlines says so.
    old, new = (list(io.StringIO(text, newline="")) for text in (before, after))
    lines = difflib.unified_diff(old, new, f"a/{printable(name)}", f"b/{printable(name)}", n=2)
    return "".join(line if line.endswith(("\n", "\r")) else f"{line}\n\\ No newline at end of file\n" for line in lines)
