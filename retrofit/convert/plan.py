"""The plan of a conversion: the changed files, the findings that ask for the changes, and the refusals."""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass, field, replace

from retrofit.analysis.edits import Edit, EditConflict
from retrofit.analysis.files.runtime_names import FILE_MODULE, RUNTIME
from retrofit.rules.edits.rewrite import (
    NAME,
    OTHER_NAME,
    ChangedFile,
    changed_file,
    name_of_runtime,
    other_meanings,
    with_name,
)
from retrofit.rules.evaluation import metric_per_rank
from retrofit.rules.evaluation.rewritten_figures import in_places_of, rewritten
from retrofit.rules.finding import Finding, found
from retrofit.rules.launch import not_convertible
from retrofit.rules.registry import find_all
from retrofit.training import Project, Source, SourceError
from retrofit.training.placement import runtime_name

from .assumptions import Assumption, assumptions_of, under_assumptions
from .self_check import Authors, ConversionError, named, require_sound

NO_LOADER = "no-loader"  # the kind of refusal where nothing is known to give the batches
UNDECIDED = (
    "all ranks take part in this, and each would decide by its own samples whether it does: do it at every step or "
    "epoch, or decide by what all ranks know, as the step or loss.item()"
)


@dataclass
class Conversion:
    """The changes to the user's own files. Nothing is to be written when there are refusals."""

    project: Project
    findings: list[Finding] = field(default_factory=list)
    files: list[ChangedFile] = field(default_factory=list)
    listed: list[Finding] = field(default_factory=list)  # figures of one rank, in the places of the new texts
    assumptions: list[Assumption] = field(default_factory=list)
    unproven: list[Assumption] = field(default_factory=list)  # of these, after runs: what they did not come to
    missing: list[str] = field(default_factory=list)  # imports of local modules that were not found, a line for each

    @property
    def refusals(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.refusal]


def files_needed(conversion: Conversion) -> list[ChangedFile]:
    """Return the modules that use the runtime already, for another script, and that this one needs as they are."""
    changed = {file.source for file in conversion.files}
    sources = [source for source in conversion.project.sources if source not in changed]
    needed = [
        ChangedFile(source, source.text) for source in sources if runtime_name(conversion.project.modules, source)
    ]
    return [file for file in needed if file.path.read_bytes() == file.data]


def plan_conversion(project: Project, assume: bool = False) -> Conversion:
    """Return what has to change in a project. What is returned has been read again and found sound.

    With `assume`, what could not be told from the source does not refuse it: it is in `assumptions`, for runs to show.

    Raises EditConflict when two rules want to change the same text, ConversionError when something is found in the
    changed text that must not be there: errors of the rules both.
    """
    if is_converted(project):
        return Conversion(project)
    conversion = _planned(project, assume)
    if not _lacks_loader(conversion):
        return conversion
    ready = project.with_ready_batches()
    if not _drawn_from(ready) - _drawn_from(project):
        return conversion
    try:
        of_objects = _planned(ready, assume)
    except (EditConflict, ConversionError):  # what is said without it stays true
        return conversion
    return conversion if _lacks_loader(of_objects) else of_objects


def _lacks_loader(conversion: Conversion) -> bool:
    return any(finding.kind == NO_LOADER for finding in conversion.refusals)


def _drawn_from(project: Project) -> set[ast.expr]:
    return {use.expression for loader in project.loaders for use in loader.uses}


def _planned(project: Project, assume: bool) -> Conversion:
    findings = under_assumptions(find_all(project)) if assume else find_all(project)
    while True:
        conversion = Conversion(project, findings=list(findings))
        conversion.assumptions = assumptions_of(project, findings) if assume else []
        try:
            _make_edits(conversion)
        except ConversionError as error:
            if not error.misplaced:
                raise
            findings = [replace(found, edits=()) if found in error.misplaced else found for found in findings]
        else:
            return conversion


def _make_edits(conversion: Conversion) -> None:
    """Change the files as the findings say, and read all of it once more. Raises EditConflict and ConversionError."""
    project = conversion.project
    edits: dict[Source, list[Edit]] = defaultdict(list)
    for finding in conversion.findings:
        for edit in finding.edits:
            edits[edit.source].append(edit)
    authors = Authors(edits, conversion.findings)
    for source, changes in edits.items():
        name = name_of_runtime(project, source)
        if name != NAME:
            conversion.findings += _unclear_names(project, source, changes)
            changes[:] = with_name(changes, name)
        conversion.files.append(_changed(project, source, changes, name, authors))
    if not conversion.refusals and conversion.files:
        files = conversion.files
        try:
            _finish(conversion, files, authors, reduces=True)
        except ConversionError:  # a figure that the loss is computed from, too: it is listed
            try:
                _finish(conversion, files, authors, reduces=False)
            except ConversionError as error:
                if not error.undecided:
                    raise
                texts = {file.path: file.text for file in files}
                undecided = in_places_of(project, texts, error.undecided)
                conversion.findings += [
                    replace(finding, refusal=UNDECIDED, kind="own-decision") for finding in undecided
                ]
    conversion.files.sort(key=lambda file: (file.source is not project.entry, file.source.name))


def _finish(conversion: Conversion, files: list[ChangedFile], authors: Authors, reduces: bool) -> None:
    """Reduce or list the figures of one rank in the changed files, and read all of it once more.

    Raises ConversionError for what is found then.
    """
    try:
        result = rewritten(conversion.project, files, reduces)
    except SourceError as error:
        raise ConversionError(f"{error}; in the converted text, an error of retrofit; nothing was written") from error
    sources = {source.path: source for source in conversion.project.sources}
    sound = require_sound(result.project, authors, [*conversion.findings, *result.listed])
    conversion.files = [ChangedFile(sources[path], text) for path, text in result.texts.items()]
    conversion.listed = result.listed
    reduced = {(finding.place.path, finding.place.line) for finding in result.reduced}
    left = [f for f in conversion.findings if not _is_reduced_now(f, reduced)]
    conversion.findings = [*left, *result.reduced, *sound]


def _is_reduced_now(finding: Finding, lines: set[tuple[str, int]]) -> bool:
    """Return whether a loss that its rule did not reduce, where not all ranks came before, is reduced now."""
    is_left = not finding.edits and not finding.refusal and finding.code == metric_per_rank.RULE.code
    return is_left and (finding.place.path, finding.place.line) in lines


def _changed(project: Project, source: Source, changes: list[Edit], name: str, authors: Authors) -> ChangedFile:
    """Return a file after its changes. Raises EditConflict that names the rules."""
    try:
        return changed_file(project, source, changes, name)
    except EditConflict as error:
        place = f"{source.name}:{source.line_of(error.edits[0].start)}" if error.edits else source.name
        rules = named(authors.codes[edit] for edit in error.edits if edit in authors.codes)
        message = f"{place}: {rules} want the same text; this is an error of retrofit, nothing was written"
        raise EditConflict(message, error.edits) from error
    except SourceError as error:
        reason, line = error.__cause__ or error, getattr(error.__cause__, "lineno", None) or 1
        rules = named(authors.codes_at(source.name, line))
        message = f"the changed file is not valid Python ({getattr(reason, 'msg', reason)}), after a change of {rules}"
        place = f"{source.name}:{line}"
        raise EditConflict(f"{place}: {message}; this is an error of retrofit, nothing was written") from error


def is_converted(project: Project) -> bool:
    """Return whether the script uses the runtime already; a module may do so for another script."""
    joins = (name for site in project.distribution.joins for name in site.names)
    has_imported = runtime_name(project.modules, project.entry) is not None
    return has_imported or any(name.startswith(f"{RUNTIME}.") for name in joins)


def require_one_runtime(project: Project) -> None:
    """Raise ValueError where a module uses the other runtime, by another conversion: with or without --no-vendor.

    Two runtimes in one program do not know of each other's batches, and would weigh and sum by their own.
    """
    other = RUNTIME if project.runtime == FILE_MODULE else FILE_MODULE
    for source in project.sources:
        if _imports(source, other) and project.modules.find(other, 0, source) is None:
            remedy = "convert this script without --no-vendor" if other == FILE_MODULE else "add --no-vendor"
            raise ValueError(
                f"{source.name} imports {other} already, and this script would import {project.runtime}: one program "
                f"needs one runtime; {remedy}, or take the conversion of {source.name} back first (--undo)"
            )


def _imports(source: Source, module: str) -> bool:
    names = {alias.name for node in source.nodes.of(ast.Import) for alias in node.names}
    names |= {node.module or "" for node in source.nodes.of(ast.ImportFrom) if not node.level}
    return any(name == module or name.startswith(f"{module}.") for name in names)


def _unclear_names(project: Project, source: Source, changes: list[Edit]) -> list[Finding]:
    """Return a refusal for a file in which the name of the runtime is taken, also where edits write it again."""
    is_rewritten = any(f"{NAME}." in source.text[edit.start : edit.end] for edit in changes)
    has_own = project.modules.find(OTHER_NAME, 0, source) is not None  # a module of the project
    names = [OTHER_NAME, *([NAME] if is_rewritten or has_own else [])]
    places = [(name, place) for name in names for place in other_meanings(project, source, name)]
    message = "the name of the runtime is taken"
    return [
        found(
            not_convertible.RULE,
            source,
            place,
            message,
            refusal=f"{name} is something else here; give that another name",
            kind="name-taken",
        )
        for name, place in places[:1]
    ]
