"""RF501 save-on-every-rank: all processes write the same file."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import given_parameters
from retrofit.analysis.edits import Edit, call_through, surround
from retrofit.analysis.flow.bindings import arguments_for
from retrofit.analysis.flow.reachability import calls_named, reached_nodes
from retrofit.analysis.memory import Memory
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import FUNCTIONS, Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Item, Member, Result, Value, name_of
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found, guarded
from retrofit.training import Project
from retrofit.training.data.drawn import loaders_in
from retrofit.training.data.loaders import is_split
from retrofit.training.distributed.ranks.rank_texts import mentions_rank
from retrofit.training.evaluation.measurements import spread
from retrofit.training.files.guards import runs_on_one
from retrofit.training.files.opened_to_change import is_read_too, open_to_read
from retrofit.training.files.outputs import (
    OPEN,
    SAVE,
    STORE,
    WRITE,
    Output,
    folder_of_temporary,
    opens_for_writing,
    opens_own_path,
    path_of,
)
from retrofit.training.files.stores import creates_tables, is_only_filled
from retrofit.training.torch_api.files import DATABASES, OWN_FOLDERS, PATH_POSITIONS
from retrofit.training.torch_api.runtime import EVALUATION_SHARES, PATH_ON_MAIN

RULE = CATALOG["RF501"]
STORE_HELP = "rd.output.on_main_process(np.memmap, path, ...), and let the other ranks read it after rd.barrier()."
READ_HELP = (
    "open it for reading on the other ranks, and let rank 0 change it: "
    'open(path, "r+" if rd.is_main_process() else "r"), and what writes to it under `if rd.is_main_process():`'
)
INVALID = [
    """\
log = open("log.txt", "a")  # RF501
log.truncate()  # RF501
""",
    """\
torch.save(model.state_dict(), "model.pt")
""",
    """\
mode = "a" if os.path.exists("log.csv") else "w"
log = open("log.csv", mode)  # RF501
np.save("scores.npy", np.zeros(3))  # RF501
torch.save([1], "last.pt")  # RF501
""",
    """\
from PIL import Image

for epoch in range(3):
    for image, name in rd.share_batches(test_loader):
        Image.fromarray(image).save(f"{epoch}.png")
""",
    # the model runs in all processes
    """\
for images, labels in loader:
    criterion(model(images), labels).backward()
np.save("last.npy", model(images).detach().numpy())  # RF501
torch.save(  # RF501
    model(images),
    "last.pt",
)
Image.fromarray(model(images).numpy()).save("image.png")  # RF501
""",
    # files that stay open and are only filled; a database that is read, too
    """\
import sqlite3

runs = sqlite3.connect("runs.db")  # RF501
runs.execute("CREATE TABLE IF NOT EXISTS losses (loss REAL)")
runs.commit()
found = runs.execute("SELECT * FROM losses").fetchall()
video = cv2.VideoWriter("run.mp4", 0, 20, (8, 8))  # RF501
video.write(found)
features = np.memmap("features.dat", dtype="float32", mode="w+", shape=(8, 2))  # RF501
features[:4] = np.zeros((4, 2))
features.flush()
""",
    # written next to its place, then renamed
    """\
import os
import tempfile

with tempfile.NamedTemporaryFile(dir="out", delete=False) as file:  # RF501
    torch.save(model.state_dict(), file.name)  # RF501
os.replace(file.name, "out/model.pt")
""",
    # opened to be changed, and only read
    """\
import h5py

samples = h5py.File("samples.h5", "r+")  # RF501
images = torch.from_numpy(samples["images"][:])
samples.close()
""",
    # whatever library made the object
    """\
scripted = torch.jit.script(model)
scripted.save(os.path.join("out", "model.pt"))
""",
]
VALID = [
    """\
if rd.is_main_process():
    torch.save(model.state_dict(), "model.pt")
""",
    # another file for each process, or none
    """\
import io

torch.save(model.state_dict(), f"model_{rd.get_rank()}.pt")
torch.save(model.state_dict(), io.BytesIO())
torch.save(model.state_dict(), rd.path_on_main("model.pt"))
""",
    # of each process, where only it looks
    """\
import tempfile

with tempfile.NamedTemporaryFile() as file:
    torch.save(model.state_dict(), file.name)
""",
    # a file per sample, of which each process has its own
    """\
from PIL import Image


def keep(image, path):
    Image.fromarray(image).save(path)


for image, name in rd.share_batches(test_loader):
    keep(image, f"{name}.png")
""",
    # arrays and databases that are read
    """\
import sqlite3

features = np.memmap("features.dat", dtype="float32", mode="r", shape=(8, 2))
samples = sqlite3.connect("samples.db").execute("select * from samples").fetchall()
""",
    # it may be opened for reading
    """\
mode = "r" if os.path.exists("log") else "w"
log = open("log", mode)
first = open("log", input()) if mode == "r" else open("samples.txt")
""",
    # what goes into a file was decided where it was opened
    """\
import csv

log = open(rd.path_on_main("log.csv"), "w")
rows = csv.writer(log)
rows.writerow(["epoch", "loss"])
""",
    """\
log = open(rd.path_on_main("log.txt"), "a")
if rd.is_main_process():
    log.truncate()
""",
    # rank 0 alone runs the function
    """\
def new_run(folder):
    with open(folder + "/options.txt", "w") as file:
        file.write("lr 0.1")
    return folder


folder = rd.output.answer_of_main(new_run, "runs")
""",
]


def find(project: Project) -> Iterator[Finding]:
    for output in project.outputs:
        source, call = output.scope.source, output.call
        if output.kind not in (OPEN, SAVE, STORE, WRITE) or _is_taken_care_of(project, output):
            continue
        if _is_named_by_sample(project.analysis, output):
            continue
        message = f"{output.name} writes on every process"
        if output.kind == STORE:
            yield found(RULE, source, call, message, _store_on_main(project, output), help=STORE_HELP)
            continue
        if output.kind != OPEN:
            if _into_guarded_file(project.analysis, output):
                continue
            if _runs_model(project, output):
                refusal = "the model runs inside a statement that writes; put its output into a variable before that"
                edits = _write_on_main(output)
                if edits:
                    yield found(RULE, source, call, message, edits)
                else:
                    yield found(RULE, source, call, message, refusal=refusal, kind="model-in-write")
                continue
            yield found(RULE, source, call, message, guarded(project, output))
            continue
        path = path_of(call)
        if path is not None and not _is_path_on_main(project.analysis, path, output):
            if is_read_too(project.analysis, output):
                edits = open_to_read(output)
                yield found(RULE, source, call, f"{output.name} opens what every process reads", edits, help=READ_HELP)
                continue
            yield found(RULE, source, call, message, surround(source, path, "rd.path_on_main(", ")"))
    if not project.distribution.is_by_hand:
        yield from _temporaries(project)
        yield from _cut_files(project)


def _cut_files(project: Project) -> Iterator[Finding]:
    """Yield what cuts a file that is open on rank 0 alone: the other ranks have os.devnull there, which cannot be."""
    opened = {output.call for output in project.outputs if output.kind == OPEN}
    for node, scope in reached_nodes(project.analysis).of(ast.Expr) if opened else ():
        call = node.value
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "truncate"):
            continue
        values = project.analysis.evaluate(call.func.value, scope)
        is_own = any(isinstance(value, Result) and value.call in opened for value in values)
        if is_own and not runs_on_one(project.analysis, scope, call):
            edits = surround(scope.source, call, "rd.is_main_process() and ", "")
            yield found(RULE, scope.source, call, "a file of rank 0 is cut on every process", edits)


def _temporaries(project: Project) -> Iterator[Finding]:
    """Yield temporary files next to those that rank 0 alone writes, in a folder that it may still be making."""
    for call, scope in calls_named(project.analysis, OWN_FOLDERS.keys()):
        folder = folder_of_temporary(project.analysis, call, scope)
        if folder is None or isinstance(folder, ast.IfExp) or runs_on_one(project.analysis, scope, call):
            continue
        edits = surround(scope.source, folder, "", " if rd.is_main_process() else None")
        yield found(RULE, scope.source, call, "a temporary file of every process in one folder", edits)


def _store_on_main(project: Project, output: Output) -> list[Edit]:
    """Return edits that leave the other processes a database in memory, or an object that does nothing; or none."""
    call, source = output.call, output.scope.source
    if is_only_filled(call, output.scope):
        return call_through(source, call, "rd.output.on_main_process")
    path = path_of(call)
    memory = DATABASES.get(output.name)
    if memory and creates_tables(project.analysis, call, output.scope) and path is not None:
        is_loose = isinstance(path, (ast.IfExp, ast.Lambda, ast.NamedExpr))
        return surround(source, path, "(" * is_loose, ")" * is_loose + f' if rd.is_main_process() else "{memory}"')
    return []


def _is_path_on_main(analysis: Analysis, path: ast.expr, output: Output) -> bool:
    """Return whether a path is one of rank 0 only: rd.path_on_main(path), or a variable that holds it."""
    return PATH_ON_MAIN in analysis.named(path, output.scope)


def _is_taken_care_of(project: Project, output: Output) -> bool:
    """Return whether one process writes, or one after the other, or each into a file of its own."""
    analysis, scope, call = project.analysis, output.scope, output.call
    if runs_on_one(analysis, scope, call) or project.runs_in_turn(scope, call):
        return True
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    if isinstance(call.func, ast.Attribute):
        given.append(call.func.value)
    if any(analysis.named(part, scope) & {"os.devnull", PATH_ON_MAIN} for part in given):
        return True
    if project.distribution.is_by_hand and output.name == "mkdir" and any(k.arg == "exist_ok" for k in call.keywords):
        return True
    is_distributed = bool(project.distribution.joins)  # in other scripts a rank is one of something else
    return is_distributed and any(mentions_rank(analysis, p, scope) for p in given if not isinstance(p, ast.Dict))


def _runs_model(project: Project, output: Output) -> bool:
    """Return whether one process alone would run a model, which waits for the others."""
    calls = {call.call for model in project.models for call in model.calls}
    return any(part in calls for part in walk(output.call))


def _write_on_main(output: Output) -> list[Edit]:
    """Return edits by which all processes compute what is written, and one writes; nothing where its result is used."""
    call, source = output.call, output.scope.source
    first = min((source.span(part)[0] for part in (*call.args, *call.keywords)), default=None)
    if not isinstance(source.parents[call], ast.Expr) or first is None:
        return []
    start, end = source.span(call.func)
    opening = source.text.index("(", end)
    if opening >= first or source.text[end:opening].strip():  # np.save(*given) is fine, (np.save)(x) is not
        return []
    return [Edit(source, start, start, "rd.output.on_main_process("), Edit(source, opening, opening + 1, ", ")]


def _into_guarded_file(analysis: Analysis, output: Output) -> bool:
    """Return whether this writes into a file that was opened for it, which is guarded where it is opened."""
    given = [*output.call.args, *(keyword.value for keyword in output.call.keywords)]
    if isinstance(output.call.func, ast.Attribute):
        given.append(output.call.func.value)
    return any(_is_open_file(analysis, v) for node in given for v in analysis.evaluate(node, output.scope))


def _is_open_file(analysis: Analysis, value: Value) -> bool:
    while isinstance(value, (Member, Item)):
        value = value.base
    if not isinstance(value, Result):
        return False
    name = name_of(value)
    if name in ("open", "io.open", "codecs.open", "gzip.open") and opens_for_writing(analysis, value.call, value.scope):
        return True
    if name.endswith(".open") and opens_own_path(value.call):
        return True
    if value.builder in ("csv.writer", "csv.DictWriter"):
        return any(_is_open_file(analysis, v) for a in value.call.args for v in analysis.evaluate(a, value.scope))
    return False


def _is_named_by_sample(analysis: Analysis, output: Output) -> bool:
    """Return whether an output goes to a file whose name comes from a batch of a sharded loader."""
    position = PATH_POSITIONS.get(output.name, 0)
    if len(output.call.args) <= position:
        return False
    return _comes_from_batch(analysis, output.call.args[position], output.scope)


def _comes_from_batch(analysis: Analysis, path: ast.expr, scope: Scope) -> bool:
    """Return whether a path has a part of a batch in it, here or in what every call gives."""
    memory: Memory[bool] = analysis.fact("paths of samples", lambda: Memory(False))
    return memory.once((path, scope), lambda: _is_of_batch(analysis, path, scope))


def _is_of_batch(analysis: Analysis, path: ast.expr, scope: Scope) -> bool:
    names = {part.id for part in walk(path) if isinstance(part, ast.Name)}
    for outer in scope.source.ancestors(path):
        if outer is scope.node:
            break
        if isinstance(outer, ast.For) and _is_over_share(analysis, outer, scope):
            drawn = {part.id for part in walk(outer.target) if isinstance(part, ast.Name)}
            if names & spread(scope, drawn).names:
                return True
    if not isinstance(scope.node, FUNCTIONS):
        return False
    bound = given_parameters(scope)
    if getattr(scope.node, "name", "") == "__getitem__" and names & spread(scope, set(bound)).names:
        return True
    given = [arguments_for(analysis, name, scope) for name in bound if name in names]
    return any(
        sites and all(a is not None and _comes_from_batch(analysis, a, where) for a, where in sites) for sites in given
    )


def _is_over_share(analysis: Analysis, loop: ast.For, scope: Scope) -> bool:
    if any(is_split(analysis, *place) for place in loaders_in(analysis, loop.iter, scope)):
        return True
    parts = (part for part in walk(loop.iter) if isinstance(part, (ast.Name, ast.Call)))
    values = (value for part in parts for value in analysis.evaluate(part, scope))
    return any(isinstance(value, Result) and value.builder in EVALUATION_SHARES for value in values)
