"""RF112 batch-size-in-shape: code that takes the batch to be as large as the batch size says."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import last_name
from retrofit.analysis.edits import Edit, surround
from retrofit.analysis.edits import replace as substitute
from retrofit.rules.catalog import CATALOG
from retrofit.rules.data.written_sizes import WrittenSize, written_sizes
from retrofit.rules.edits.squeezed_rows import squeezed_rows
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.data.sized.kept_rows import KeptRows, reads_of_kept_rows
from retrofit.training.steps.skipped_steps import batches_of_one, incomplete_batches
from retrofit.training.torch_api.tensors import VIEWS

RULE = CATALOG["RF112"]
HELP_SKIPPED = (
    "rd.collectives.on_any_rank(len(images) < rd.data.micro_batch(batch_size)): all ranks leave out the same batches"
)
HELP_FEW = "rd.loss.batch_count(len(images)), the number of samples of all ranks: all leave out the same batches."
HELP_KEPT = "take the number of rows from the batch in hand, x.size(0), or use the first x.size(0) of them."
INVALID = [
    """\
batch_size = 8
loader = rd.distribute_loader(DataLoader(dataset, batch_size, shuffle=True, drop_last=True))
for images, labels in loader:
    loss = criterion(model(images.view(batch_size, -1)), labels)
    loss.backward()
""",
    """\
batch_size = (yaml.safe_load(text) if text else json.load(file))["batch_size"]
loader = rd.distribute_loader(DataLoader(dataset, batch_size, shuffle=True, drop_last=True))
for images, labels in loader:
    loss = criterion(model(images.view(batch_size, -1)), labels)
    loss.backward()
""",
    # an entry of the settings, and what is computed of two of them
    """\
settings = yaml.safe_load(text)
loader = rd.distribute_loader(DataLoader(dataset, settings["batch"], drop_last=True))
real = torch.ones(settings["batch"], 2)
for images, labels in loader:
    criterion(model(images), real).backward()
""",
    """\
import library


class Target:
    def __init__(self, rows):
        self.rows = torch.ones(rows, 2)


settings = library.settings(text)
loader = rd.distribute_loader(DataLoader(dataset, settings.batch // settings.parts, drop_last=True))
target = Target(settings.batch // settings.parts)
for images, labels in loader:
    criterion(model(images), target.rows).backward()
""",
    """\
loader = rd.distribute_loader(DataLoader(dataset, args.batch // args.parts, drop_last=True))
for images, labels in loader:
    criterion(model(images), torch.ones(int(args.batch / args.parts), 2)).backward()
""",
    """\
batch_size = 8
noise = torch.distributions.Normal(torch.zeros(4), torch.ones(4))
loader = rd.distribute_loader(DataLoader(dataset, batch_size, shuffle=True, drop_last=True))
for images, labels in loader:
    loss = criterion(model(images, noise.sample((batch_size,))), labels)
    loss.backward()
""",
    # as many entries as are asked for
    """\
import random

batch_size = 8
loader = rd.distribute_loader(DataLoader(dataset, batch_size, drop_last=True))
for images, labels in loader:
    starts = torch.tensor(random.choices(range(9), k=batch_size))
    ends = starts + torch.from_numpy(np.random.choice(9, batch_size))
    kinds = torch.multinomial(torch.ones(3), batch_size, replacement=True)
    criterion(model(images) + starts[:, None] / ends[:, None] + kinds[:, None], labels).backward()
""",
    """\
batch_size = 8
loader = rd.distribute_loader(DataLoader(dataset, batch_size, drop_last=True))
for images, labels in loader:
    real = torch.ones(batch_size, 2)
    criterion(model(images), real).backward()
""",
    """\
batch_size = 8
loader = rd.distribute_loader(DataLoader(dataset, batch_size, drop_last=True))
for step, (images, labels) in enumerate(loader):
    steps = torch.tensor([step] * batch_size)
    criterion(model(images), steps).backward()
""",
    """\
batch_size = 8
loader = rd.distribute_loader(DataLoader(dataset, batch_size))
for images, labels in loader:
    if len(images) < batch_size:
        continue
    criterion(model(images), labels).backward()
""",
    """\
batch_size = 8
loader = rd.distribute_loader(DataLoader(dataset, batch_size, drop_last=True))
noise = torch.FloatTensor(batch_size, 2)
for images, labels in loader:
    noise.normal_()
    criterion(model(images) + noise, labels).backward()
""",
    # a batch of one sample, of all processes
    """\
for images, labels in rd.distribute_loader(DataLoader(dataset, 8)):
    if len(images) == 1:
        continue
    criterion(model(images), labels).backward()
""",
    # the number of batches
    """\
batch_size = 8
loader = rd.distribute_loader(DataLoader(dataset, batch_size))
for step, (images, labels) in enumerate(loader):
    criterion(model(images), labels).backward()
    print(step, len(range(0, len(dataset), batch_size)))
""",
    # rows that a layer keeps, all of them the same
    """\
class Shift(nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.ones = nn.Parameter(torch.ones(rows, 1), requires_grad=False)

    def forward(self, x):
        return torch.cat([x, self.ones], 1)


batch_size = 8
shift = Shift(batch_size)
for images, labels in rd.distribute_loader(DataLoader(dataset, batch_size, drop_last=True)):
    criterion(model(shift(images)), labels).backward()
""",
    # given to a function, which is given another number elsewhere
    """\
def noise(rows):
    return torch.randn(rows, 2)


batch_size = 8
loader = rd.distribute_loader(DataLoader(dataset, batch_size, drop_last=True))
for images, labels in loader:
    criterion(model(images) + noise(batch_size), labels).backward()
shown = noise(3)
""",
    # which can be another number
    """\
batch_size = 8
loader = rd.distribute_loader(DataLoader(dataset, batch_size, drop_last=True))
for images, labels in loader:
    groups = 1 if whole else batch_size
    criterion(model(images.view(groups, -1)), labels).backward()
""",
    # the last batch may have one row in a process
    """\
for images, labels in DataLoader(dataset, 8):
    labels = labels.squeeze_()  # RF112
    criterion(model(images), labels).backward()
""",
    """\
for images, labels in DataLoader(dataset, 8):
    criterion(torch.squeeze(model(images)), labels).backward()  # RF112
    print(accuracy_score(labels.cpu().squeeze().numpy(), [0]))  # RF112
""",
]
VALID = [
    # an axis that is named, and batches that all have their full size
    """\
loader = DataLoader(dataset, 8, drop_last=True)
for images, labels in loader:
    criterion(model(images).squeeze(), labels.squeeze(1)).backward()
""",
    """\
for images, labels in DataLoader(dataset, 8):
    criterion(model(images).squeeze(-1), rd.data.squeeze_rows(labels)).backward()
    first = labels[0].cpu().squeeze()
""",
    """\
batch_size = 8
loader = rd.distribute_loader(DataLoader(dataset, batch_size, shuffle=True, drop_last=True))
for images, labels in loader:
    loss = criterion(model(images.view(rd.data.own_batch_size(batch_size), -1)), labels)
    loss.backward()
""",
    # the batch tells its own size
    """\
batch_size = 8
loader = rd.distribute_loader(DataLoader(dataset, batch_size))
for images, labels in loader:
    real = torch.ones(len(images), 2)
    criterion(model(images.view(images.size(0), -1)), real).backward()
""",
    # all processes leave out the same batches
    """\
batch_size = 8
loader = rd.distribute_loader(DataLoader(dataset, batch_size))
for images, labels in loader:
    if rd.collectives.on_any_rank(len(images) < rd.data.micro_batch(batch_size)):
        continue
    criterion(model(images), labels).backward()
""",
    # what is only shown
    """\
batch_size = 8
loader = rd.distribute_loader(DataLoader(dataset, batch_size))
shown = torch.randn(batch_size, 3)
for images, labels in loader:
    criterion(model(images), labels).backward()
    print(model(shown))
""",
    # what only another call of the model is given
    """\
class Scaled(nn.Module):
    def forward(self, x):
        return model(2 * x)


batch_size, scaled = 8, Scaled()
shown = torch.randn(batch_size, 3)
for images, labels in rd.distribute_loader(DataLoader(dataset, batch_size)):
    criterion(scaled(images), labels).backward()
    print(scaled(shown))
""",
    # another entry, and another part of the batch size
    """\
settings = yaml.safe_load(text)
loader = rd.distribute_loader(DataLoader(dataset, settings["batch"] // settings["parts"]))
for images, labels in loader:
    criterion(model(images), torch.ones(len(images), settings["classes"], settings["batch"] // 3)).backward()
""",
    # another setting, which is 8 too
    """\
batch_size, classes = 8, 8
loader = rd.distribute_loader(DataLoader(dataset, batch_size))
for images, labels in loader:
    criterion(model(images), torch.ones(len(images), classes)).backward()
""",
    # in a distributed script this is the batch size of one process
    """\
batch_size = 8
loader = DataLoader(dataset, batch_size, sampler=DistributedSampler(dataset), drop_last=True)
for images, labels in loader:
    criterion(model(images.view(batch_size, -1)), labels).backward()
""",
]
SQUEEZED = "squeeze() takes the axis of the samples away, too, where a process has one row of a batch: the last one"
HELP_SQUEEZED = "name the axis, squeeze(1) or squeeze(-1), or leave the last batch out by drop_last=True"


def find(project: Project) -> Iterator[Finding]:
    if project.distribution.is_by_hand:  # there the batch size is that of one process
        return
    yield from _skipped(project)
    for squeezed in squeezed_rows(project):
        source = squeezed.scope.source
        yield found(RULE, source, squeezed.call, SQUEEZED, squeezed.edits, help=HELP_SQUEEZED)
    for written in written_sizes(project):
        text, source = ast.unparse(written.size), written.where.source
        if written.is_kept:
            reads = reads_of_kept_rows(project, written.made, written.size, written.scope)
            if reads is None or reads:
                message = f"with RETROFIT_BATCH=global a process has fewer samples than {text} rows"
                edits = [edit for read in reads or () for edit in _first_rows(read)]
                yield found(RULE, source, written.size, message, edits, help=HELP_KEPT)
            continue
        function, message = "own_batch_size", f"{text} is taken for the size of the batch in hand"
        if _counts_batches(written):
            function = "samples_per_step"
            message = f"{ast.unparse(written.made)} has an entry for each batch of one process"
        edits = surround(source, written.size, f"rd.data.{function}(", f"{_samples_of(written)})")
        yield found(RULE, source, written.size, message, edits)


def _first_rows(read: KeptRows) -> list[Edit]:
    """Return the edit that reads as many of a layer's rows as the batch in hand has."""
    source, text = read.scope.source, ast.unparse(read.read)
    samples = f", {read.samples}" if read.samples else ""
    return surround(source, read.read, "", f"[:rd.data.own_batch_size(len({text}){samples})]")


def _samples_of(written: WrittenSize) -> str:
    """Return the argument that says which samples a layer has in hand: a whole batch, in an evaluation."""
    made, scope = written.made, written.scope
    is_view = isinstance(made, ast.Call) and last_name(made) in VIEWS and isinstance(made.func, ast.Attribute)
    is_of_layer = scope is written.where and getattr(scope.node, "name", "") == "forward"
    viewed = made.func.value if is_view else None  # type: ignore[union-attr]
    return f", {viewed.id}" if is_of_layer and isinstance(viewed, ast.Name) else ""


def _counts_batches(written: WrittenSize) -> bool:
    """Return whether this is the number of batches, `len(range(0, samples, batch_size))`."""
    made, outer = written.made, written.scope.source.parents[written.made]
    is_range = isinstance(made, ast.Call) and last_name(made) == "range" and written.size in made.args[2:]
    return is_range and isinstance(outer, ast.Call) and last_name(outer) == "len"


def _skipped(project: Project) -> Iterator[Finding]:
    for node, part, scope in incomplete_batches(project):
        start, end = scope.source.span(part)
        edits = [
            *surround(scope.source, node.test, "rd.collectives.on_any_rank(", ")"),
            Edit(scope.source, start, end, f"rd.data.micro_batch({scope.source.segment(part)})"),
        ]
        message = "processes may differ in which batch is a whole one"
        yield found(RULE, scope.source, node.test, message, edits, help=HELP_SKIPPED)
    for node, size, scope in batches_of_one(project):
        message = "one process may have one sample of a batch, where all together have several"
        edits = surround(scope.source, size, "rd.loss.batch_count(", ")")
        if isinstance(size, ast.Compare):
            graphs = ast.unparse(size).removesuffix(".batch[-1] == 0")
            edits = [substitute(scope.source, size, f"rd.loss.batch_count({graphs}.num_graphs) == 1")]
        yield found(RULE, scope.source, node.test, message, edits, help=HELP_FEW)
