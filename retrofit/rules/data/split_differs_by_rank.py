"""RF108 split-differs-by-rank: every process draws its own split: nothing sets a seed, or it differs by rank."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import argument_for, last_name
from retrofit.analysis.edits import Edit, insert_after, put_under, surround
from retrofit.analysis.flow.main_guard import is_main_guard
from retrofit.analysis.flow.reachability import calls_named
from retrofit.analysis.scopes import Scope, place_of
from retrofit.rules.catalog import CATALOG
from retrofit.rules.edits.after_setup import edit_after_setup
from retrofit.rules.edits.early_modules import import_of_early
from retrofit.rules.edits.early_names import is_early
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.data.seeds import drawn_early, drawn_unseeded, is_drawn
from retrofit.training.distributed.ranks.own_values import (
    DRAW,
    GENERATOR,
    GENERATOR_SEED,
    HASH,
    ORDER,
    RESEED,
    SAMPLER_SEED,
    SEED,
    OwnValue,
    own_values,
)
from retrofit.training.files.guards import runs_on_some
from retrofit.training.torch_api.data import RANDOM_SPLITS
from retrofit.training.torch_api.distributed import RANK
from retrofit.training.torch_api.randomness import SEEDS, TORCH
from retrofit.training.torch_api.runtime import SAME_RANDOM_STATE

RULE = CATALOG["RF108"]
MESSAGES = {
    ORDER: "a set of texts has another order in every process",
    HASH: "hash() of a text is another number in every process",
    GENERATOR: "each process draws other numbers: nothing seeds this generator",
    DRAW: "each process draws other numbers: the system gives them",
    RESEED: "this generator begins with another seed in every process",
    **dict.fromkeys((SEED, GENERATOR_SEED), "this is another seed in every process"),
    SAMPLER_SEED: "this is another seed in every process, and the orders after it are others",
}
HELPS = {
    ORDER: "sorted(...) in place of list(...) gives all processes one order; make it after rd.setup_distributed() else",
    HASH: "zlib.crc32(text.encode()) is the same number in all processes, and in the next run",
    **dict.fromkeys(
        (GENERATOR, GENERATOR_SEED, RESEED), "give it a number as its seed, which is then the same in all processes"
    ),
    DRAW: "draw it by random.Random(seed) with one number for all processes",
    SAMPLER_SEED: "leave it out: the order of an epoch is drawn from the same numbers on every rank",
    SEED: "give it a number as its seed, or call rd.share_random_state() after it, on every rank",
}
EARLY = "each process draws other numbers here, before the processes join, and no seed is set"
HELP_EARLY = (
    "random.seed(0), numpy.random.seed(0) or torch.manual_seed(0) before it, or draw after rd.setup_distributed()"
)
INVALID = [
    """\
train_set, val_set = random_split(dataset, [80, 20])
""",
    """\
dist.init_process_group("nccl")
torch.manual_seed(dist.get_rank())
train_set, val_set = random_split(dataset, [80, 20])
""",
    """\
seed = random.randint(1, 10000)
torch.manual_seed(seed)
""",
    """\
torch.manual_seed(int(time.time()))
""",
    """\
torch.manual_seed(0)
order = np.random.permutation(len(dataset))
""",
    """\
train_set, val_set = random_split(dataset, [80, 20])
torch.manual_seed(0)
""",
    """\
noise = torch.randn(100, 4)
torch.manual_seed(0)
""",
    # drawn by what is called before the training, from a stream that has no seed
    """\
import random


def split(rows):
    random.shuffle(rows)
    return rows[:80], rows[80:]


torch.manual_seed(0)
train_rows, val_rows = split(list(range(100)))
""",
    # the order of a set of texts, a generator and a seed of each process
    """\
import random

torch.manual_seed(0)
rd.share_random_state()
words = list(set("some text"))  # RF108
places = {word: place for place, word in enumerate({*words})}  # RF108
for word in {str(place) for place in places}:  # RF108
    words.append(word)
rng = np.random.default_rng()  # RF108
other = random.Random(None)  # RF108
np.random.seed()  # RF108
order = np.random.permutation(len(dataset))
""",
    """\
rd.share_random_state()
held = [word for word in ["some", "text"] if hash(word) % 10 == 0]  # RF108
""",
    # a sampler that seeds the common stream
    """\
class Endless(torch.utils.data.Sampler):
    def __init__(self, number):
        self.number = number

    def __iter__(self):
        while True:
            np.random.seed()  # RF108
            yield from np.random.permutation(self.number)


rd.share_random_state()
loader = DataLoader(dataset, batch_size=8, sampler=Endless(len(dataset)))
""",
]
VALID = [
    """\
rd.share_random_state()
train_set, val_set = random_split(dataset, [80, 20])
""",
    # statements in one line
    """\
dist.init_process_group("nccl")
torch.manual_seed(dist.get_rank()); torch.manual_seed(0); train_set, val_set = random_split(dataset, [80, 20])
""",
    # a generator of its own
    """\
dist.init_process_group("nccl")
torch.manual_seed(dist.get_rank())
train_set, val_set = random_split(dataset, [80, 20], torch.Generator().manual_seed(0))
""",
    # one process draws, and hands it on
    """\
dist.init_process_group("nccl")
parts = [None]
if dist.get_rank() == 0:
    parts = [random_split(dataset, [80, 20])]
dist.broadcast_object_list(parts)
""",
    # an option or an environment variable is the same on all processes
    """\
parser.add_argument("--seed", type=int, default=int(os.environ["SEED"]))
torch.manual_seed(parser.parse_args().seed)
""",
    # one order, or none; numbers have the same one everywhere
    """\
rd.share_random_state()
words = sorted(set("some text"))
lengths = list({len(word) for word in words})
seen = {word.lower() for word in set(words)}
for word in seen:
    seen.discard(word)
total = sum(len(word) for word in seen)
rng = np.random.default_rng(0)
shared = rd.collectives.broadcast_object(list(set("some text")))
""",
    # parameters and layers, which are each process's own
    """\
rd.share_random_state()
last = {p for p in model.parameters() if p.dim() == 1}
rest = list(set(model.parameters()) - last)
for layer in set(model.modules()):
    layer.train()
held = list(set(map(id, rest)) | {id(p) for _, p in model.named_parameters()})
""",
    # numpy draws from a stream of its own
    """\
np.random.seed(0)
torch.manual_seed(0)
order = np.random.permutation(len(dataset))
""",
]


SAME_SPLITS = {name for name, stream in SEEDS.items() if stream == TORCH} | SAME_RANDOM_STATE


def find(project: Project) -> Iterator[Finding]:
    if not project.paths:
        return
    if not project.distribution.is_by_hand:
        yield from _own_values(project)
        yield from _early(project)
    if project.distribution.is_by_hand or project.calls_any(SAME_RANDOM_STATE):
        yield from _splits(project)  # weights come from the wrapper and orders from the sampler
        return
    message = "no seed is set, so the processes differ from the start"
    if _is_seeded(project):
        drawn = drawn_unseeded(project.analysis, project.paths, project.nodes_in_loops)
        if next(drawn, None) is None:
            return
        message = "each process draws other numbers before a seed is set"
    source, statement, edit = edit_after_setup(project, "rd.share_random_state()")
    yield found(RULE, source, statement, message, [edit])


def _early(project: Project) -> Iterator[Finding]:
    """Yield what is drawn before the processes join, when they cannot have one state of the random numbers yet."""
    if import_of_early(project) is not None:
        return
    analysis = project.analysis
    training = {frame.node for path in project.paths for frame in path.frames}  # it joins the processes itself
    for node, module in drawn_early(analysis, (analysis.module_scopes[source] for source in project.sources)):
        if node in training:
            continue
        if module.source is not project.entry or is_early(project, module.source.statement(node), module):
            yield found(RULE, module.source, node, EARLY, help=HELP_EARLY)


def _own_values(project: Project) -> Iterator[Finding]:
    """Yield what each process makes in its own way; rank 0's is handed out, where the group is there."""
    for own in own_values(project):
        source, statement = own.scope.source, own.scope.source.statement(own.node)
        is_imported = own.scope.parent is None and source is not project.entry and import_of_early(project) is None
        edits: list[Edit] = []
        is_once = own.kind == SAMPLER_SEED or not own.is_repeated
        if is_once and not is_imported and not is_early(project, statement, own.scope):
            edits = list(_shared_with_all(own, statement))
        yield found(RULE, source, own.node, MESSAGES[own.kind], edits, help="" if edits else HELPS[own.kind])


def _shared_with_all(own: OwnValue, statement: ast.stmt) -> Iterator[Edit]:
    source = own.scope.source
    if own.kind in (HASH, RESEED) or (own.kind == DRAW and last_name(own.node) == "shuffle"):
        return
    if own.kind == SAMPLER_SEED:
        yield from put_under(source, [statement], "if rd.get_world_size() == 1:")
        return
    if own.kind == SEED:
        is_alone = isinstance(statement, ast.Expr) and statement.value is own.node
        yield from [insert_after(source, statement, ["rd.share_random_state()"])] if is_alone else []
        return
    is_list = isinstance(own.node, ast.Call) and last_name(own.node) in ("list", "tuple")
    is_made = own.kind != ORDER or is_list
    before, after = (
        ("rd.collectives.broadcast_object(", ")") if is_made else ("rd.collectives.broadcast_object(list(", "))")
    )
    yield from surround(source, own.node, before, after)


def _is_seeded(project: Project) -> bool:
    """Return whether torch gets one seed for all processes, whatever the options are."""
    for call, scope in calls_named(project.analysis, {"torch.manual_seed"}):
        if not any(_is_condition(outer) for outer in scope.source.ancestors(call)):
            return not is_drawn(project.analysis, call, scope)
    return False


def _is_condition(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and not is_main_guard(node)


def _splits(project: Project) -> Iterator[Finding]:
    """Yield the splits that are drawn from a stream of which no seed is known to be the same on all processes."""
    seeds = calls_named(project.analysis, SAME_SPLITS)
    help = "random_split(dataset, lengths, torch.Generator().manual_seed(0)): one split for all processes"
    for node, scope in calls_named(project.analysis, RANDOM_SPLITS):
        if runs_on_some(project.analysis, scope, node):
            continue
        given = argument_for(node, ["dataset", "lengths", "generator"], "generator")
        if given is None and not _has_same_seed(project, node, scope, seeds):
            yield found(RULE, scope.source, node, "each process draws another split", help=help)


def _has_same_seed(project: Project, split: ast.Call, scope: Scope, seeds: list[tuple[ast.Call, Scope]]) -> bool:
    """Return whether the last seed before a split may be the same on all processes."""
    before = [node for node, where in seeds if where is scope and place_of(node) < place_of(split)]
    if before:
        last = max(before, key=place_of)
        return not _differs(project, last, scope)
    return any(not _differs(project, node, where) for node, where in seeds if where is not scope)


def _differs(project: Project, seed: ast.Call, scope: Scope) -> bool:
    return bool(seed.args) and RANK in project.ranks.sources_of(seed.args[0], scope)
