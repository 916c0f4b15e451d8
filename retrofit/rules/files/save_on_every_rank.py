"""RF501 save-on-every-rank: all processes write the same file."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.edits import surround
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Item, Member, Result, Value, name_of
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found, guarded
from retrofit.training import Project
from retrofit.training.distributed.ranks.rank_texts import mentions_rank
from retrofit.training.files.guards import runs_on_one
from retrofit.training.files.outputs import OPEN, SAVE, WRITE, Output, opens_for_writing, opens_own_path, path_of
from retrofit.training.files.sample_files import is_named_by_sample
from retrofit.training.torch_api.runtime import PATH_ON_MAIN

RULE = CATALOG["RF501"]
INVALID = [
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
    # a file per sample, of which each process has its own
    """\
from PIL import Image


def keep(image, path):
    Image.fromarray(image).save(path)


for image, name in rd.share_batches(test_loader):
    keep(image, f"{name}.png")
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
        if output.kind not in (OPEN, SAVE, WRITE) or _is_taken_care_of(project, output):
            continue
        if is_named_by_sample(project.analysis, output):
            continue
        message = f"{output.name} writes on every process"
        if output.kind != OPEN:
            if _into_guarded_file(project.analysis, output):
                continue
            if _runs_model(project, output):
                refusal = "the model runs inside a statement that writes; put its output into a variable before that"
                yield found(RULE, source, call, message, refusal=refusal)
                continue
            yield found(RULE, source, call, message, guarded(project, output))
            continue
        path = path_of(call)
        if path is not None and not _is_path_on_main(project.analysis, path, output):
            yield found(RULE, source, call, message, surround(source, path, "rd.path_on_main(", ")"))


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
    return any(part in calls for part in ast.walk(output.call))


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
