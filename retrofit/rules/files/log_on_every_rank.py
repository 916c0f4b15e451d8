"""RF505 log-on-every-rank: curves, lines and bars appear once per process."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import returns_of
from retrofit.analysis.edits import Edit, add_argument, block_of, call_through, surround
from retrofit.analysis.flow.reachability import calls_named, reached_nodes
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, is_imported
from retrofit.analysis.values.kinds import LocalFunction
from retrofit.rules.catalog import CATALOG
from retrofit.rules.edits.after_setup import edit_after_setup
from retrofit.rules.edits.early_prints import first_print
from retrofit.rules.finding import Finding, found, guarded
from retrofit.training import Project
from retrofit.training.distributed.ranks.rank_guards import ends_program, side_of_test
from retrofit.training.distributed.ranks.rank_texts import mentions_rank
from retrofit.training.files.guards import runs_on_one
from retrofit.training.files.outputs import BAR, LOGGER, PRINT, SHOW, TRACK, TRACKER, Output
from retrofit.training.files.trackers import tool_of_run
from retrofit.training.placement import import_edit
from retrofit.training.torch_api.output import BUILTINS, PRINTS_RESULT
from retrofit.training.torch_api.runtime import QUIET_LOGGING, START_TRACKER
from retrofit.training.torch_api.trackers import STARTS

RULE = CATALOG["RF505"]
COUNTS_OF_BAR = frozenset({"n", "last_print_n", "format_dict"})
SHOWN_BY_MAIN = 'file=None if rd.is_main_process() else open(rd.path_on_main("bar"), "w")'  # elsewhere the null device
INVALID = [
    """\
writer = SummaryWriter("log")
""",
    """\
import logging

import wandb

logging.basicConfig(level=logging.INFO)  # RF505
run = wandb.init(project="words")  # RF505
for epoch in tqdm(range(3)):  # RF505
    print(epoch)  # RF505
""",
    # an option of the script, or of tqdm, hides the bar for other reasons
    """\
quiet = len(dataset) > 100
for epoch in tqdm(range(3), disable=quiet):  # RF505
    continue
for epoch in tqdm(range(3), disable=False if quiet else None):  # RF505
    continue
for epoch in tqdm(range(3), disable=None):  # RF505
    continue
counted = tqdm(range(3))  # RF505
counted.close = counted.n
options = {"disable": quiet}
for epoch in tqdm(range(3), **options):  # RF505
    continue
""",
    """\
import fire


def main():
    return 0.5


fire.Fire(main)  # RF505
""",
    """\
dist.init_process_group("gloo")
for epoch in range(3):
    for images, labels in loader:
        criterion(model(images), labels).backward()
    print(epoch)  # RF505
""",
]
VALID = [
    """\
writer = rd.output.on_main_process(SummaryWriter, "log")
""",
    # each process says which one it is
    """\
print("rank", rd.get_rank(), "is here")
""",
    # it is switched off for the others
    """\
bar = tqdm(range(3), disable=not rd.is_main_process())
other = tqdm(range(3), disable=len(dataset) > 100 or not rd.is_main_process())
never = tqdm(range(3), disable=True)
if rd.is_main_process():
    print("starting")
""",
    # into a file
    """\
print("starting", file=open(rd.path_on_main("log.txt"), "w"))
""",
    # a distributed script may print on every process at its start
    """\
dist.init_process_group("gloo")
print("joined")
""",
]
PRINT_IMPORT = "from {runtime} import print_main as print"


def find(project: Project) -> Iterator[Finding]:
    quiet = set(project.sources) if _replaces_print(project) else set()
    if project.distribution.is_by_hand:  # what others print while they are set up is left alone
        quiet |= set(project.sources) - {project.entry, *(scope.source for _, scope in project.in_loops)}
    # Of a script that distributes itself only what every epoch prints counts: some lines of its start may be meant so.
    looping = project.nodes_in_loops
    printing = looping if project.distribution.is_by_hand else {output.call for output in project.outputs}
    logging = project.distribution.is_by_hand or project.calls_any({QUIET_LOGGING})
    disabled = _disabled(project)
    if not project.distribution.is_by_hand:
        yield from _results(project)
    for output in project.outputs:
        source = output.scope.source
        if runs_on_one(project.analysis, output.scope, output.call) or _tells_rank(project, output):
            continue
        if output.kind == TRACKER:
            edits = call_through(source, output.call, _through(project, output))
            yield found(RULE, source, output.call, f"{output.name} on every process", edits)
        elif output.kind == LOGGER and not logging:
            logging = True
            _, _, edit = edit_after_setup(project, "rd.output.quiet_logging()")
            yield found(RULE, source, output.call, "every process logs", [edit])
        elif output.kind == PRINT and output.call in printing and _is_of_another(output):
            name = Edit(source, *source.span(output.call.func), "rd.print_main")
            yield found(RULE, source, output.call, "every process prints", [name])
        elif output.kind == SHOW and output.call in printing:
            yield found(RULE, source, output.call, "every process prints", guarded(project, output))
        elif output.kind == TRACK and tool_of_run(output.name) not in disabled:
            is_alone = isinstance(source.parents[output.call], ast.Expr)  # nothing reads what it returns
            guards = guarded(project, output) if is_alone else []
            changes = guards or call_through(source, output.call, "rd.output.on_main_process")
            yield found(RULE, source, output.call, f"{output.name} on every process", changes)
        elif output.kind == BAR and (edits := _hidden_bar(project, output)):
            yield found(RULE, source, output.call, "a progress bar per process", edits)
        elif output.kind == PRINT and source not in quiet and output.call in printing:
            if _says_why_it_ends(project, output):
                continue  # an error, which each process may say
            quiet.add(source)
            yield found(
                RULE,
                source,
                output.call,
                "every process prints",
                [import_edit(source, PRINT_IMPORT.format(runtime=project.runtime), first_print(project, source))],
            )


def _is_of_another(output: Output) -> bool:
    """Return whether a print is not the one of its own file: builtins.print, or one under a name from another file."""
    func = output.call.func
    return isinstance(func, ast.Attribute) or is_imported(func, output.scope)


def _results(project: Project) -> Iterator[Finding]:
    """Yield the calls that print on every process what a function returns: fire.Fire(train)."""
    for call, scope in calls_named(project.analysis, PRINTS_RESULT.keys()):
        name = next(PRINTS_RESULT[name] for name in project.analysis.called(call, scope) if name in PRINTS_RESULT)
        run = [value for given in call.args[:1] for value in project.analysis.evaluate(given, scope)]
        is_silent = bool(run) and all(isinstance(value, LocalFunction) and not returns_of(value.node) for value in run)
        if is_silent or runs_on_one(project.analysis, scope, call) or any(k.arg in (name, None) for k in call.keywords):
            continue
        text = f"{name}=lambda result: result if rd.is_main_process() else None"
        yield found(RULE, scope.source, call, "every process prints the result", add_argument(scope.source, call, text))


def _hidden_bar(project: Project, output: Output) -> list[Edit]:
    """Return the edits that hide a bar on all ranks but the first, none where its `disable` follows the rank."""
    source, scope = output.scope.source, output.scope
    given = [keyword.value for keyword in output.call.keywords if keyword.arg == "disable"]
    others = [keyword.value for keyword in output.call.keywords if keyword.arg is None]
    if not given and others:
        return _hidden_by_options(project, others[-1], scope)
    if not given and _is_counted_by(output) and not any(keyword.arg == "file" for keyword in output.call.keywords):
        return add_argument(source, output.call, SHOWN_BY_MAIN)
    if not given:
        return add_argument(source, output.call, "disable=not rd.is_main_process()")
    is_always = isinstance(given[0], ast.Constant) and given[0].value is True
    parts = [part for part in walk(given[0]) if isinstance(part, ast.expr)]
    follows = any(side_of_test(project.analysis, part, scope) for part in parts)
    if is_always or follows or project.distribution.is_by_hand or mentions_rank(project.analysis, given[0], scope):
        return []
    if isinstance(given[0], ast.Constant) and given[0].value is None:  # hidden where there is no terminal
        return surround(source, given[0], "", " if rd.is_main_process() else True")
    is_loose = isinstance(given[0], (ast.IfExp, ast.Lambda, ast.NamedExpr))
    return surround(source, given[0], "(" * is_loose, ")" * is_loose + " or not rd.is_main_process()")


def _is_counted_by(output: Output) -> bool:
    """Return whether the script reads how far a bar is, `bar.n`, which one that is disabled does not count."""
    source = output.scope.source
    outer = source.parents[output.call]
    targets = outer.targets if isinstance(outer, ast.Assign) else [getattr(outer, "optional_vars", None)]
    names = {ast.unparse(target) for target in targets if isinstance(target, (ast.Name, ast.Attribute))}
    read = (node for node in source.nodes.of(ast.Attribute) if node.attr in COUNTS_OF_BAR)
    return bool(names) and any(ast.unparse(node.value) in names for node in read)


def _hidden_by_options(project: Project, options: ast.expr, scope: Scope) -> list[Edit]:
    """Return the edits of `tqdm(batches, **options)`, which cannot be given `disable` twice."""
    if any(side_of_test(project.analysis, part, scope) for part in walk(options) if isinstance(part, ast.expr)):
        return []
    text = scope.source.segment(options)
    return surround(scope.source, options, f"({text} if rd.is_main_process() else {{**", ', "disable": True})')


def _through(project: Project, output: Output) -> str:
    """Return the function of the runtime that starts a tracker: its own disabled run for the others, or an object."""
    return "rd.output.start_tracker" if output.name in STARTS else "rd.output.on_main_process"


def _disabled(project: Project) -> set[str]:
    """Return the tools of which every process starts a run, now or in the converted project: disabled on the others."""
    started = {
        STARTS[output.name]
        for output in project.outputs
        if output.name in STARTS and not runs_on_one(project.analysis, output.scope, output.call)
    }
    for call, scope in calls_named(project.analysis, {START_TRACKER}):
        named = project.analysis.named(call.args[0], scope) if call.args else ()
        started |= {STARTS[name] for name in named if name in STARTS}
    return started


def _tells_rank(project: Project, output: Output) -> bool:
    """Return whether each process says which one it is, or writes to a place of its own."""
    given = [*output.call.args, *(keyword.value for keyword in output.call.keywords)]
    is_distributed = bool(project.distribution.joins)  # in other scripts a rank is one of something else
    return is_distributed and any(mentions_rank(project.analysis, part, output.scope) for part in given)


def _says_why_it_ends(project: Project, output: Output) -> bool:
    """Return whether the next statement ends the process: print(error, file=sys.stderr), sys.exit(2)."""
    statement = output.scope.source.statement(output.call)
    block = block_of(output.scope.source, statement)
    following = block[block.index(statement) + 1 :][:1]
    return any(ends_program(project.analysis, part, output.scope) for part in following)


def _replaces_print(project: Project) -> bool:
    """Return whether the project puts a print of its own in the place of Python's."""
    targets = [
        (target, scope)
        for node, scope in reached_nodes(project.analysis).of(ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute) and target.attr == "print"
    ]
    return any(project.analysis.named(target.value, scope) & BUILTINS for target, scope in targets)
