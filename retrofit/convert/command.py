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

from retrofit.analysis.files.runtime_names import FILE_MODULE, FILE_NAME, RUNTIME
from retrofit.installation import DISTRIBUTION, requirement

if TYPE_CHECKING:
    from retrofit.analysis.files.start import Start

    from .plan import Conversion

EPILOG = """\
examples:
  retrofit convert train.py             the changes as a diff, nothing is written
  retrofit convert train.py --write     write them, with the runtime and two launch scripts
  retrofit convert train.py --undo      take the last conversion back
  retrofit convert train.py --update-runtime     renew multigpu.py after the kit was updated
  retrofit convert -m tools.train       a script that is started as `python -m tools.train`, from this folder

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
    add("-m", "--module", metavar="MODULE", help="the script as in `python -m MODULE`, in this folder or in --root")
    add(
        "--root",
        metavar="DIR",
        help="the folder that the script is started from; the launch scripts are written there (default: the innermost "
        "one that holds the script and all that it imports, up to the top of its repository)",
    )
    act = parser.add_mutually_exclusive_group().add_argument
    act("--write", action="store_true", help="write the changes (default: show them)")
    act("--undo", action="store_true", help="restore what the last --write changed")
    act("--update-runtime", action="store_true", help=f"write the {FILE_NAME} of this kit in the place of an older one")
    add(
        "--force",
        action="store_true",
        help="with --write: also into a git work tree with uncommitted changes; with --update-runtime: also over a "
        "runtime file that was changed by hand",
    )
    add(
        "--no-vendor",
        action="store_true",
        help=f"import the runtime from the installed kit, which every machine that trains then needs (the distribution "
        f"{DISTRIBUTION}); default: write the runtime as one file, {FILE_NAME}, next to the script",
    )


def run(args: argparse.Namespace) -> int:
    """Carry out the command and return its exit status."""
    from retrofit.analysis.garbage import no_garbage_search
    from retrofit.training import SourceError

    from .self_check import ConversionError
    from .writing.write import WriteError

    try:
        with no_garbage_search():
            return _convert(args)
    except (SourceError, WriteError, ValueError, OSError) as error:
        lines = str(error).split("\n") if isinstance(error, ConversionError) else [str(error)]
        _say(f"retrofit convert: error: {lines[0]}", *lines[1:])
        return 2
    except KeyboardInterrupt:
        _say("retrofit convert: interrupted; no file is half-written")
        return 130


def _convert(args: argparse.Namespace) -> int:
    from retrofit.analysis.deep_stack import with_deep_stack
    from retrofit.analysis.files.source import printable

    from .plan import is_converted
    from .writing.write import real_places

    if args.undo:
        return _undo(args)
    if args.update_runtime:
        return _update(args)
    _recover(args)
    start, conversion = with_deep_stack(lambda: _plan(args))
    if is_converted(conversion.project):
        print(f"{printable(start.script)} uses the runtime already; nothing to do")
        return 0
    reasons = [f"{finding.place}: {finding.code} {finding.refusal}" for finding in conversion.refusals]
    reasons += conversion.project.modules.unreadable.values()
    if reasons:
        _say(*conversion.missing, *reasons, f"{start.script} cannot be converted; nothing was written")
        return 1
    real_places(start.root, [file.path for file in conversion.files])
    with_deep_stack(lambda: _show(conversion))
    if not args.write:
        _say("nothing was written; --write writes it")
        return 0
    _write(args, start, conversion)
    return 0


def _plan(args: argparse.Namespace) -> tuple[Start, Conversion]:
    from retrofit.analysis.files.missing_modules import missing_modules
    from retrofit.training.launch.entry import open_project

    from .plan import is_converted, plan_conversion, require_one_runtime

    runtime = RUNTIME if args.no_vendor else FILE_MODULE
    project, start = open_project(args.path, args.module, args.root, runtime)
    own = project.modules.find(FILE_MODULE, 0, project.entry)
    if own and not args.no_vendor:
        raise ValueError(f"{own} is not of retrofit, and the runtime needs this name; rename it, or add --no-vendor")
    if not is_converted(project):
        require_one_runtime(project)
    conversion = plan_conversion(project)
    conversion.missing = missing_modules(project.modules)
    return start, conversion


def _places(args: argparse.Namespace) -> tuple[list[Path], Path | None]:
    """Return the folders that may have conversions which are meant, and the script where one is named."""
    from retrofit.analysis.files.start import find_script

    from .writing.undo import folders_with_journals

    given = Path(args.path)
    if args.module:
        root = Path(os.path.realpath(args.root or os.curdir))
        return [root], find_script(args.module, root)[0]
    if given.is_dir():
        return [Path(os.path.realpath(args.root or given))], None
    script = Path(os.path.realpath(given))
    return [Path(os.path.realpath(args.root))] if args.root else folders_with_journals(script), script


def _undo(args: argparse.Namespace) -> int:
    from retrofit.analysis.files.source import printable

    from .added.files import again
    from .writing.undo import root_of, undo

    folders, script = _places(args)
    root = root_of(script, folders) if script else folders[0]
    undone = undo(root, script, again)
    for path in undone.restored:
        print(f"restored {printable(str(path.relative_to(root)))}")
    if undone.kept:
        needed_by = printable(", ".join(undone.needed_by))
        print(f"kept {len(undone.kept)} files that the conversion of {needed_by} needs")
    return 0


def _update(args: argparse.Namespace) -> int:
    from retrofit.analysis.files.source import printable

    from .added.update_runtime import runtime_places, update

    for path in runtime_places(*_places(args)):
        print(printable(update(path, args.force)))
    return 0


def _recover(args: argparse.Namespace) -> None:
    """Take back a conversion that was interrupted, or say that this is to be done first."""
    from .added.files import again
    from .writing.undo import find_unfinished, recover

    for root in _places(args)[0]:
        script = find_unfinished(root) if root.is_dir() else None
        if script is None:
            continue
        if not args.write:
            command = shlex.join(["retrofit", "convert", str(root / script)])
            what = f"`{command} --undo` restores the files, --write converts again"
            raise ValueError(f"a conversion of {script} was interrupted; {what}")
        recover(root, again)
        _say(f"an interrupted conversion of {script} was taken back")


def _show(conversion: Conversion) -> None:
    """Print the diff on the standard output, and on the other one why each place is changed, by rule."""
    from retrofit.rules.registry import RULES
    from retrofit.training.optimizer.rate_rules import rate_rules
    from retrofit.training.steps.step_limits import step_limits
    from retrofit.training.steps.step_schedules import step_schedules

    from .listing import lines

    for file in conversion.files:
        sys.stdout.write(_diff(file.source.text, file.text, file.source.name))
    sys.stdout.flush()
    for code, rule in RULES.items():
        found = [finding for finding in conversion.findings if finding.code == code]
        changed = [str(finding.place) for finding in found if finding.edits]
        if changed:
            _say(f"{code} {rule.RULE.name}: {', '.join(changed)}")
        for finding in found:
            if not finding.edits:
                _say(f"{finding.place}: {code} {finding.message}; left to you: {finding.help}")
    for rate, rule_of_rate in rate_rules(conversion.project):
        _say(f"{rate}: {rule_of_rate}")
    for limit in step_limits(conversion.project):
        _say(f"{limit.place}: {limit.text}")
    for schedule in step_schedules(conversion.project):
        _say(f"{schedule.place}: {schedule.text}")
    for unread in [*conversion.missing, *conversion.project.modules.not_read]:
        _say(f"not read, so nothing is changed there: {unread}")
    for evaluation in conversion.project.evaluations:
        if evaluation.reason:
            place = evaluation.scope.source.place(evaluation.loop)
            _say(f"{place}: every process runs all of this evaluation: {evaluation.reason}")
    _say(*lines(conversion.listed))


def _write(args: argparse.Namespace, start: Start, conversion: Conversion) -> None:
    from retrofit.analysis.deep_stack import with_deep_stack
    from retrofit.training.steps.step_limits import step_limits
    from retrofit.training.steps.step_schedules import step_schedules

    from .added.files import additions
    from .added.runtime_file import note
    from .added.script_facts import script_facts
    from .listing import steps
    from .plan import files_needed
    from .writing.work_tree import has_uncommitted_changes
    from .writing.write import real_places, write_all

    root = start.root
    if not args.force and has_uncommitted_changes(root):
        raise ValueError(f"{root} has uncommitted changes; commit them first, or add --force")
    texts = [source.text for source in conversion.project.sources]
    not_read = [*conversion.missing, *conversion.project.modules.not_read]
    project = conversion.project
    counted = with_deep_stack(lambda: steps(step_limits(project), step_schedules(project), conversion.files))
    facts = with_deep_stack(lambda: script_facts(project))
    files = additions(start, not args.no_vendor, texts, not_read, conversion.listed, counted, facts)
    users = [*files_needed(conversion), *conversion.files]
    places = real_places(root, [file.path for file in users])
    files.update(zip(places, (file.data for file in users)))
    found = {path: path.read_bytes() for path in files if path.name == FILE_NAME and path.is_file()}
    number = write_all(root, files, start)
    notes = {path: note(before, files[path]) for path, before in found.items()}
    _say(*(f"{os.path.relpath(path, root)} {text}" for path, text in notes.items() if text))
    again = shlex.join(["retrofit", "convert", *_given(args), "--undo"])
    page = next(path for path in files if path.suffix == ".md")
    shown = page.name if root == start.entry.parent else os.path.relpath(page)
    _say(f"wrote {number} files, read {shown}; `{again}` takes it back")
    if args.no_vendor:
        install = shlex.join(["python", "-m", "pip", "install", requirement()])
        _say(f"the runtime is not among them; on every machine that trains run `{install}`")


def _given(args: argparse.Namespace) -> list[str]:
    """Return what the command line says about the script."""
    script = ["-m", args.module] if args.module else [args.path]
    return [*script, *(["--root", args.root] if args.root else [])]


def _diff(before: str, after: str, name: str) -> str:
    from retrofit.analysis.files.source import printable

    # A form feed ends no line, though str.splitlines says so.
    old, new = (list(io.StringIO(text, newline="")) for text in (before, after))
    lines = difflib.unified_diff(old, new, f"a/{printable(name)}", f"b/{printable(name)}", n=2)
    return "".join(line if line.endswith(("\n", "\r")) else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _say(*lines: str) -> None:
    """Print lines for the user; a file's name, or a name in a file, may hold what controls a terminal."""
    from retrofit.analysis.files.source import printable

    for line in lines:
        print(printable(line), file=sys.stderr)
