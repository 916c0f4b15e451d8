"""RF109 same-random-stream: every process draws the same random numbers for its samples."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.project import Project
from retrofit.project.distributed.ranks import RANK
from retrofit.project.distributed.shards import given_to, makers_of, may_give
from retrofit.project.loaders import RUNTIME, TRAIN
from retrofit.project.reach import reached_nodes
from retrofit.project.scopes import Scope, own_nodes
from retrofit.project.values import Instance

from .finding import Finding, found

CODE = "RF109"
NAME = "same-random-stream"
WHY = "With one seed on all processes their samples get the same crops, flips and noise, in the same order."
HELP = "seed + rank, once weights and splits are drawn, or rd.split_random_streams(seed)"
BAD = """\
class Noisy(Dataset):
    def __getitem__(self, index):
        return torch.ones(4) + torch.randn(4), torch.ones(2)


torch.manual_seed(0)
torch.distributed.init_process_group("gloo")
loader = rd.shard_loader(DataLoader(Noisy(), batch_size=8))
"""
GOOD = """\
class Noisy(Dataset):
    def __getitem__(self, index):
        return torch.ones(4) + torch.randn(4), torch.ones(2)


torch.distributed.init_process_group("gloo")
torch.manual_seed(0 + torch.distributed.get_rank())
loader = rd.shard_loader(DataLoader(Noisy(), batch_size=8))
"""
TORCH, PYTHON, NUMPY = "torch", "random", "numpy.random"
SEEDING = {
    "torch.manual_seed": TORCH,
    "torch.random.manual_seed": TORCH,
    "random.seed": PYTHON,
    "numpy.random.seed": NUMPY,
}
DRAWS = {
    f"{TORCH}.{name}"
    for name in ("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "bernoulli", "normal")
}
DRAWS |= {
    f"{PYTHON}.{name}" for name in ("random", "randint", "randrange", "uniform", "choice", "gauss", "shuffle", "sample")
}
DRAWS |= {
    f"{NUMPY}.{name}"
    for name in ("rand", "randn", "randint", "uniform", "normal", "choice", "random", "permutation", "beta")
}
SEED_ALL = f"{RUNTIME}.seed_everything"


def find(project: Project) -> Iterator[Finding]:
    is_ours = project.distribution.is_by_hand or project.calls_any({SEED_ALL})
    if not is_ours or project.calls_any({f"{RUNTIME}.split_random_streams"}):
        return
    drawn = {stream for class_scope in _datasets(project) for stream in _streams(project, class_scope)}
    seeds = sorted(_seeds(project), key=lambda seed: seed[0].lineno)
    apart = {stream for _, _, streams, differs in seeds if differs for stream in streams}
    if TORCH in apart:
        return  # workers seed the other streams from this one
    for call, scope, streams, _ in seeds:
        if streams & (drawn - apart):
            yield found(CODE, scope.source, call, "all processes draw the same numbers for their samples", HELP)
            return


def _seeds(project: Project) -> Iterator[tuple[ast.Call, Scope, set[str], bool]]:
    """Yield the calls that seed whole streams, with these streams and whether the seed differs by rank."""
    for node, scope in reached_nodes(project.analysis):
        if isinstance(node, ast.Call) and node.args:
            names = project.analysis.called(node, scope)
            streams = {SEEDING[name] for name in names & SEEDING.keys()}
            if SEED_ALL in names:
                streams = {TORCH, PYTHON, NUMPY}
            if streams:
                yield node, scope, streams, RANK in project.ranks.sources_of(node.args[0], scope)


def _datasets(project: Project) -> set[Scope]:
    """Return the project's own classes of which the training data sets are made, whose workers seed nothing."""
    classes: set[Scope] = set()
    for loader in project.loaders:
        for maker, scope in makers_of(project.analysis, loader) if TRAIN in loader.roles else ():
            if any(may_give(project.analysis, maker, scope, name) for name in ("worker_init_fn", "generator")):
                continue
            dataset = given_to(maker, "dataset")
            for node, where in project.ranks.behind(dataset, scope) if dataset else ():
                values = project.analysis.evaluate(node, where)
                classes |= {value.scope for value in values if isinstance(value, Instance)}
    return classes


def _streams(project: Project, class_scope: Scope) -> Iterator[str]:
    """Yield the streams that reading a sample draws from, unless it draws by a generator of its own."""
    for method in ("__getitem__", "__iter__"):
        function = project.analysis.classes.method(class_scope, method)
        if function is None:
            continue
        calls = [node for node in own_nodes(function.node) if isinstance(node, ast.Call)]
        names = [(call, name) for call in calls for name in project.analysis.called(call, function.scope)]
        seeded = {SEEDING[name] for _, name in names if name in SEEDING}  # by the number of the sample, perhaps
        for call, name in names:
            stream = name.rpartition(".")[0]
            if name in DRAWS and stream not in seeded and not any(k.arg == "generator" for k in call.keywords):
                yield stream
