"""The stages of a conversion at the command line: plan it, say why it is refused, show it, write it."""

from __future__ import annotations

import argparse
import difflib
import io
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from retrofit.analysis.files.runtime_names import FILE_MODULE, FILE_NAME, RUNTIME
from retrofit.packages.installation import requirement

if TYPE_CHECKING:
    from retrofit.analysis.files.start import Start
    from retrofit.rules.finding import Finding

    from .plan import Conversion

    Planned = tuple[argparse.Namespace, Start, Conversion]

SEARCH = "rd.search."  # which is in the runtime file of scripts that search for settings alone


def plan_together(scripts: list[argparse.Namespace]) -> list[Planned]:
    """Plan the conversion of each script when those before it are converted: shared modules are changed already."""
    texts: dict[Path, bytes] = {}
    plans = []
    for script in scripts:
        start, conversion = plan(script, texts)
        texts.update({file.path: file.data for file in conversion.files})
        plans.append((script, start, conversion))
    return plans


def plan(args: argparse.Namespace, texts: Mapping[Path, bytes]) -> tuple[Start, Conversion]:
    """Read the script that the command line names, and plan its conversion; `texts` count instead of the files."""
    from retrofit.analysis.files.missing_modules import missing_modules
    from retrofit.training.launch.entry import open_project

    from .plan import is_converted, plan_conversion, require_one_runtime

    runtime = RUNTIME if args.no_vendor else FILE_MODULE
    _say_what_is_exported(args)
    project, start = open_project(args.path, args.module, args.root, runtime)
    project = project.with_texts(texts) if texts else project
    own = project.modules.find(FILE_MODULE, 0, project.entry)
    if own and not args.no_vendor:
        raise ValueError(f"{own} is not of retrofit, and the runtime needs this name; rename it, or add --no-vendor")
    if not is_converted(project):
        require_one_runtime(project)
    conversion = plan_conversion(project, assume=args.prove)
    conversion.missing = missing_modules(project.modules)
    return start, conversion


def _say_what_is_exported(args: argparse.Namespace) -> None:
    """Say what becomes of a notebook. Raises ValueError where its script would have to run before it is there."""
    from retrofit.analysis.files.notebook import export, is_notebook

    notebook = Path(args.path)
    if args.module or not is_notebook(notebook) or not notebook.is_file():
        return
    if args.prove:
        raise ValueError(
            f"--prove runs a script, which {notebook} is not: write it with --write, then `retrofit verify`"
        )
    result = export(notebook)
    what = f"its {result.number_of_cells} code cells as a script, {result.path.name}, in which these lines are comments"
    say(f"{notebook} stays as it is; converted are {what}{':' if result.comments else ' (there are none):'}")
    say(*(f"  {comment}" for comment in result.comments))


def places(args: argparse.Namespace) -> tuple[list[Path], Path | None]:
    """Return the folders that may have conversions which are meant, and the script where one is named."""
    from retrofit.analysis.files.notebook import script_of
    from retrofit.analysis.files.start import find_script

    from .writing.undo import folders_with_journals

    given = script_of(Path(args.path))
    if args.module:
        root = Path(os.path.realpath(args.root or os.curdir))
        return [root], find_script(args.module, root)[0]
    if given.is_dir():
        return [Path(os.path.realpath(args.root or given))], None
    script = Path(os.path.realpath(given))
    return [Path(os.path.realpath(args.root))] if args.root else folders_with_journals(script), script


def recover_first(args: argparse.Namespace) -> None:
    """Take back a conversion that was interrupted, or say that this is to be done first."""
    from .added.files import again
    from .writing.undo import find_unfinished, recover

    for root in places(args)[0]:
        script = find_unfinished(root) if root.is_dir() else None
        if script is None:
            continue
        if not (args.write or args.prove):
            command = shlex.join(["retrofit", "convert", str(root / script)])
            what = f"`{command} --undo` restores the files, --write converts again"
            raise ValueError(f"a conversion of {script} was interrupted; {what}")
        recover(root, again)
        say(f"an interrupted conversion of {script} was taken back")


def refused(start: Start, conversion: Conversion) -> bool:
    """Return whether a conversion cannot be written; say the reasons then, and what to do."""
    reasons = list(conversion.project.modules.unreadable.values())
    for finding in reversed(conversion.refusals):
        reasons[:0] = [f"{finding.place}: {finding.code} {finding.refusal}", *_helping(conversion, finding)]
    if reasons:
        say(*conversion.missing, *reasons, f"{start.script} cannot be converted; nothing was written")
    return bool(reasons)


def _helping(conversion: Conversion, finding: Finding) -> list[str]:
    """Return what to do about a refusal, in lines."""
    from retrofit.analysis.deep_stack import with_deep_stack
    from retrofit.rules.refusals.help import help_lines

    return with_deep_stack(lambda: list(help_lines(conversion.project, finding)))


def show(conversion: Conversion) -> None:
    """Print the diff on the standard output, and on the other one why each place is changed, by rule."""
    from retrofit.analysis.deep_stack import with_deep_stack
    from retrofit.rules.edits.at_run_time import is_refused_at_run_time
    from retrofit.rules.registry import RULES
    from retrofit.training.evaluation.whole_passes import doubtful_passes
    from retrofit.training.losses.reductions.reduction import unread_losses
    from retrofit.training.optimizer.rate_rules import rate_rules
    from retrofit.training.steps.counted.step_limits import step_limits
    from retrofit.training.steps.counted.step_schedules import step_schedules

    from .listing import lines

    for file in conversion.files:
        sys.stdout.write(_diff(file.source.text, file.text, file.source.name))
    sys.stdout.flush()
    for code, rule in RULES.items():
        found = [finding for finding in conversion.findings if finding.code == code]
        changed = [str(finding.place) for finding in found if finding.edits]
        if changed:
            say(f"{code} {rule.RULE.name}: {', '.join(changed)}")
        for finding in found:
            if finding.edits and finding.kind:
                say(f"{finding.place}: {finding.message}")
                say(*(_helping(conversion, finding) if is_refused_at_run_time(finding) else ()))
            elif not finding.edits and not finding.assumption:
                say(f"{finding.place}: {code} {finding.message}; left to you: {finding.help}")
    for rate, rule_of_rate in rate_rules(conversion.project):
        say(f"{rate}: {rule_of_rate}")
    for limit in step_limits(conversion.project):
        say(f"{limit.place}: {limit.text}")
    for schedule in step_schedules(conversion.project):
        say(f"{schedule.place}: {schedule.text}")
    for unread in [*conversion.missing, *conversion.project.modules.not_read]:
        say(f"not read, so nothing is changed there: {unread}")
    say(*with_deep_stack(lambda: unread_losses(conversion.project)))
    for evaluation in conversion.project.evaluations:
        if evaluation.reason:
            place = evaluation.scope.source.place(evaluation.loop)
            say(f"{place}: every process runs all of this evaluation: {evaluation.reason}")
    for use, reason in doubtful_passes(conversion.project):
        say(f"{use.scope.source.place(use.expression)}: each process draws its own part of the samples here: {reason}")
    say(*lines(conversion.listed))
    say(*(f"assumed, for the runs to show: {assumption}" for assumption in conversion.assumptions))


def require_clean(args: argparse.Namespace, roots: list[Path]) -> None:
    """Raise ValueError in a git work tree with uncommitted changes."""
    from .writing.work_tree import has_uncommitted_changes

    for root in dict.fromkeys(() if args.force else roots):
        if has_uncommitted_changes(root):
            raise ValueError(f"{root} has uncommitted changes; commit them first, or add --force")


def new_files(
    args: argparse.Namespace, start: Start, conversion: Conversion, others: Sequence[str] = ()
) -> dict[Path, bytes]:
    """Return all files that are to be written, by their places: the changed ones, and those that are added.

    `others` are the scripts that are converted together with this one. Raises WriteError for a place that may not be
    written.
    """
    from retrofit.analysis.deep_stack import with_deep_stack
    from retrofit.training.losses.reductions.reduction import unread_losses
    from retrofit.training.steps.counted.step_limits import step_limits
    from retrofit.training.steps.counted.step_schedules import step_schedules

    from .added.files import additions
    from .added.script_facts import script_facts
    from .listing import not_followed, steps, unproven
    from .plan import files_needed
    from .writing.write import real_places

    root = start.root
    texts = [source.text for source in conversion.project.sources]
    not_read = [*conversion.missing, *conversion.project.modules.not_read]
    project = conversion.project
    counted = with_deep_stack(lambda: steps(step_limits(project), step_schedules(project), conversion.files))
    facts = replace(with_deep_stack(lambda: script_facts(project)), others=tuple(others))
    counted += not_followed(with_deep_stack(lambda: unread_losses(project))) + unproven(conversion.unproven)
    features = {*args.features, *(["search"] if any(SEARCH in file.text for file in conversion.files) else [])}
    files = additions(start, not args.no_vendor, texts, not_read, conversion.listed, counted, facts, features)
    users = [*files_needed(conversion), *conversion.files]
    real = real_places(root, [file.path for file in users])
    files.update(zip(real, (file.data for file in users)))
    return files


def write_together(plans: list[Planned]) -> None:
    """Write the conversions of all scripts, or of none."""
    from .added.files import again
    from .writing.undo import undo

    written: list[Start] = []
    try:
        for script, start, conversion in plans:
            others = [other.script for _, other, _ in plans if other is not start]
            write(script, start, new_files(script, start, conversion, others))
            written.append(start)
    except BaseException:
        for start in reversed(written):
            undo(start.root, start.entry, again)
        raise


def write(args: argparse.Namespace, start: Start, files: dict[Path, bytes]) -> None:
    """Write the files of a conversion, all or none, and say what was written."""
    from .added.runtime_file import note
    from .writing.write import write_all

    root = start.root
    found = {path: path.read_bytes() for path in files if path.name == FILE_NAME and path.is_file()}
    number = write_all(root, files, start)
    notes = {path: note(before, files[path]) for path, before in found.items()}
    say(*(f"{os.path.relpath(path, root)} {text}" for path, text in notes.items() if text))
    again = shlex.join(["retrofit", "convert", *_given(args), "--undo"])
    page = next(path for path in files if path.suffix == ".md")
    shown = page.name if root == start.entry.parent else os.path.relpath(page)
    say(f"wrote {number} files, read {shown}; `{again}` takes it back")
    if args.no_vendor:
        install = shlex.join(["python", "-m", "pip", "install", requirement()])
        say(f"the runtime is not among them; on every machine that trains run `{install}`")


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


def say(*lines: str) -> None:
    """Print lines for the user; a file's name, or a name in a file, may hold what controls a terminal."""
    from retrofit.analysis.files.source import printable

    for line in lines:
        print(printable(line), file=sys.stderr)
