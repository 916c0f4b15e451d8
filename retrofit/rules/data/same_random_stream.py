"""RF109 same-random-stream: every process draws the same random numbers for its samples."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.flow.reachability import calls_named
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.data.random_draws import own_streams, seeds_in_workers, shared_generators, worker_streams
from retrofit.training.torch_api.distributed import RANK
from retrofit.training.torch_api.randomness import NUMPY, PYTHON, RESTORES, SEEDS, SEEDS_OF_WORKER, TORCH
from retrofit.training.torch_api.runtime import SEED_ALL, SPLIT_STREAMS

RULE = CATALOG["RF109"]
HELP_RESTORED = "save the state of each process: dist.gather_object(torch.get_rng_state(), states), states[rank]"
HELP_GENERATOR = "a seed of each process, seed + rd.get_rank(), where it draws for samples alone"
INVALID = [
    """\
class Noisy(Dataset):
    def __getitem__(self, index):
        return torch.ones(4) + torch.randn(4), torch.ones(2)


torch.manual_seed(0)
dist.init_process_group("gloo")
loader = DataLoader(Noisy(), 8, sampler=torch.utils.data.DistributedSampler(Noisy()))
""",
    """\
dist.init_process_group("gloo")
torch.manual_seed(0)
loader = DataLoader(dataset, 8, sampler=torch.utils.data.DistributedSampler(dataset))
model = DDP(nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.1)))
""",
    """\
dist.init_process_group("gloo")
torch.manual_seed(0)
loader = DataLoader(dataset, 8, sampler=torch.utils.data.DistributedSampler(dataset))
for images, labels in loader:
    criterion(model(images + torch.randn_like(images)), labels).backward()
""",
    """\
class Noisy(Dataset):
    def __getitem__(self, index):
        return torch.ones(4) * np.random.uniform(), torch.ones(2)


dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
loader = DataLoader(Noisy(), 8, num_workers=4, worker_init_fn=lambda worker: np.random.seed(42 + worker))
""",
]
VALID = [
    """\
class Noisy(Dataset):
    def __getitem__(self, index):
        return torch.ones(4) + torch.randn(4), torch.ones(2)


dist.init_process_group("gloo")
torch.manual_seed(0 + dist.get_rank())
loader = DataLoader(Noisy(), 8, sampler=torch.utils.data.DistributedSampler(Noisy()))
""",
    # drawn once, before the batches
    """\
dist.init_process_group("gloo")
torch.manual_seed(0)
fixed = torch.randn(8, 4)
for images, labels in loader:
    criterion(model(images + fixed[: len(images)]), labels).backward()
""",
    # the same weights first, then a random stream per process
    """\
dist.init_process_group("gloo")
torch.manual_seed(0)
loader = DataLoader(dataset, 8, sampler=torch.utils.data.DistributedSampler(dataset))
model = DDP(nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.1)))
torch.manual_seed(dist.get_rank())
""",
]
MESSAGE = "all processes draw the same numbers for their samples"


def find(project: Project) -> Iterator[Finding]:
    for call, scope in [] if project.distribution.is_by_hand else shared_generators(project):
        if not any(RANK in project.ranks.sources_of(given, scope) for given in call.args):
            yield found(RULE, scope.source, call, MESSAGE, help=HELP_GENERATOR)
    is_ours = project.distribution.is_by_hand or project.calls_any({SEED_ALL})
    if not is_ours or project.calls_any(SPLIT_STREAMS):
        return
    seeds = sorted(_seeds(project), key=lambda seed: seed[0].lineno)
    apart = {stream for _, _, streams, differs in seeds if differs for stream in streams}
    # Workers seed all their streams from torch's.
    drawn = own_streams(project) | (set() if TORCH in apart else worker_streams(project))
    for call, scope, streams, _ in seeds:
        if streams & (drawn - apart):
            yield found(RULE, scope.source, call, MESSAGE)
            break
    for call, scope, _ in seeds_in_workers(project):
        if not _differs_in_worker(project, call, scope):
            yield found(RULE, scope.source, call, MESSAGE)
            break
    yield from _restored(project, drawn | apart)


def _seeds(project: Project) -> Iterator[tuple[ast.Call, Scope, set[str], bool]]:
    """Yield the calls that seed whole streams, with these streams and whether the seed differs by rank."""
    for node, scope in calls_named(project.analysis, SEEDS.keys() | {SEED_ALL}):
        if node.args and not project.analysis.spawned.runs_once(scope):
            names = project.analysis.called(node, scope)
            streams = {SEEDS[name] for name in names & SEEDS.keys()}
            if SEED_ALL in names:
                streams = {TORCH, PYTHON, NUMPY}
            if streams:
                yield node, scope, streams, RANK in project.ranks.sources_of(node.args[0], scope)


def _differs_in_worker(project: Project, call: ast.Call, scope: Scope) -> bool:
    seed = call.args[0]
    if RANK in project.ranks.sources_of(seed, scope):
        return True
    parts = ((part, where) for node, where in project.ranks.origins(seed, scope) for part in walk(node))
    return any(isinstance(p, ast.Call) and project.analysis.called(p, where) & SEEDS_OF_WORKER for p, where in parts)


def _restored(project: Project, drawn: set[str]) -> Iterator[Finding]:
    """Yield where every process takes over the random state that one has saved."""
    for node, scope in calls_named(project.analysis, RESTORES.keys()):
        if not node.args:
            continue
        names = project.analysis.called(node, scope) & RESTORES.keys()
        if not {RESTORES[name] for name in names} & drawn or RANK in project.ranks.sources_of(node.args[0], scope):
            continue
        origins = [place for place in project.ranks.origins(node.args[0], scope) if isinstance(place[0], ast.Call)]
        if any("torch.load" in project.analysis.called(*place) for place in origins):  # type: ignore[arg-type]
            yield found(RULE, scope.source, node, "all processes continue with one random state", help=HELP_RESTORED)
            return
