"""RF108 split-differs-by-rank: every process draws its own split: nothing sets a seed, or it differs by rank."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import argument_for
from retrofit.analysis.flow.main_guard import is_main_guard
from retrofit.analysis.flow.reachability import calls_named
from retrofit.analysis.scopes import Scope, place_of
from retrofit.rules.catalog import CATALOG
from retrofit.rules.edits.after_setup import edit_after_setup
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.data.seeds import drawn_unseeded, is_drawn
from retrofit.training.files.guards import runs_on_some
from retrofit.training.torch_api.data import RANDOM_SPLITS
from retrofit.training.torch_api.distributed import RANK
from retrofit.training.torch_api.randomness import SEEDS, TORCH
from retrofit.training.torch_api.runtime import SAME_RANDOM_STATE

RULE = CATALOG["RF108"]
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
    if project.distribution.is_by_hand or project.calls_any(SAME_RANDOM_STATE):
        yield from _splits(project)  # weights come from the wrapper and orders from the sampler
        return
    message = "no seed is set, so the processes differ from the start"
    if _is_seeded(project):
        drawn = drawn_unseeded(project.analysis, project.paths, {node for node, _ in project.in_loops})
        if next(drawn, None) is None:
            return
        message = "each process draws other numbers before a seed is set"
    source, statement, edit = edit_after_setup(project, "rd.share_random_state()")
    yield found(RULE, source, statement, message, [edit])


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
